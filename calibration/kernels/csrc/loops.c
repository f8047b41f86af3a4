/*
 * The loops in each width of vectors that the processor may have, chosen when the program runs.
 *
 * Only the scalar ones round a multiply-add twice; all others are fused and give equal bits.
 */
#include "kernels.h"

#include <stdio.h>
#include <string.h>

enum { GROUP = 8, MOST_WIDTHS = 3 }; /* GROUP: vectors of a mix at a time: a latency of 4 on 2 pipes */

static uint64_t bits_of(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---------------------------------------------------------------- scalar: everywhere */

#define WIDTH scalar
#define VECTOR double
#define LANES 1
#define CHAINS 12
#define TARGET
#define SPREAD(x) (x)
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define MULTIPLY_ADD(x, by, more) ((x) * (by) + (more))
#define SUM uint64_t
#define NO_SUM 0
#define ADD_BITS(sum, v) ((sum) + bits_of(v))
#define TOTAL(sum) (sum)
#include "vector_loops.h"
static const loops_t SCALAR = LOOPS_OF("scalar", false);
#include "vector_loops_end.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* ---------------------------------------------------------------- AVX2 with FMA: 16 registers */

static inline __attribute__((target("avx2"))) uint64_t total_avx2(__m256i sum)
{
    uint64_t part[4];

    _mm256_storeu_si256((__m256i *)part, sum);
    return part[0] + part[1] + part[2] + part[3];
}

#define WIDTH avx2
#define VECTOR __m256d
#define LANES 4
#define CHAINS 12
#define TARGET __attribute__((target("avx2,fma")))
#define SPREAD(x) _mm256_set1_pd(x)
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, v) _mm256_storeu_pd(p, v)
#define MULTIPLY_ADD(x, by, more) _mm256_fmadd_pd(x, by, more)
#define SUM __m256i
#define NO_SUM _mm256_setzero_si256()
#define ADD_BITS(sum, v) _mm256_add_epi64(sum, _mm256_castpd_si256(v))
#define TOTAL(sum) total_avx2(sum)
#include "vector_loops.h"
static const loops_t AVX2 = LOOPS_OF("avx2", true);
#include "vector_loops_end.h"

/* ---------------------------------------------------------------- AVX-512: 32 registers */

static inline __attribute__((target("avx512f"))) uint64_t total_avx512(__m512i sum)
{
    uint64_t part[8], total = 0; /* the intrinsic's sum is of signed numbers, which must not overflow */

    _mm512_storeu_si512(part, sum);
    for (int i = 0; i < 8; i++)
        total += part[i];
    return total;
}

#define WIDTH avx512
#define VECTOR __m512d
#define LANES 8
#define CHAINS 16
#define TARGET __attribute__((target("avx512f")))
#define SPREAD(x) _mm512_set1_pd(x)
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, v) _mm512_storeu_pd(p, v)
#define MULTIPLY_ADD(x, by, more) _mm512_fmadd_pd(x, by, more)
#define SUM __m512i
#define NO_SUM _mm512_setzero_si512()
#define ADD_BITS(sum, v) _mm512_add_epi64(sum, _mm512_castpd_si512(v))
#define TOTAL(sum) total_avx512(sum)
#include "vector_loops.h"
static const loops_t AVX512 = LOOPS_OF("avx512", true);
#include "vector_loops_end.h"

static int found(const loops_t *out[MOST_WIDTHS])
{
    int n = 0;

    out[n++] = &SCALAR;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = &AVX2;
    if (__builtin_cpu_supports("avx512f"))
        out[n++] = &AVX512;
    return n;
}

#elif defined(__aarch64__)
#include <arm_neon.h>

/* ---------------------------------------------------------------- NEON: in every 64-bit Arm, 32 registers */

#define WIDTH neon
#define VECTOR float64x2_t
#define LANES 2
#define CHAINS 16
#define TARGET
#define SPREAD(x) vdupq_n_f64(x)
#define LOAD(p) vld1q_f64(p)
#define STORE(p, v) vst1q_f64(p, v)
#define MULTIPLY_ADD(x, by, more) vfmaq_f64(more, x, by)
#define SUM uint64x2_t
#define NO_SUM vdupq_n_u64(0)
#define ADD_BITS(sum, v) vaddq_u64(sum, vreinterpretq_u64_f64(v))
#define TOTAL(sum) vaddvq_u64(sum)
#include "vector_loops.h"
static const loops_t NEON = LOOPS_OF("neon", true);
#include "vector_loops_end.h"

static int found(const loops_t *out[MOST_WIDTHS])
{
    out[0] = &SCALAR;
    out[1] = &NEON;
    return 2;
}

#else

static int found(const loops_t *out[MOST_WIDTHS])
{
    out[0] = &SCALAR;
    return 1;
}

#endif

/* ---------------------------------------------------------------- choosing */

const loops_t *loops_named(const char *name)
{
    const loops_t *all[MOST_WIDTHS];
    int n = found(all);

    if (name[0] == '\0')
        return all[n - 1];
    for (int i = 0; i < n; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

void loops_print(void)
{
    const loops_t *all[MOST_WIDTHS];
    int n = found(all);

    for (int i = 0; i < n; i++)
        puts(all[i]->name);
}
