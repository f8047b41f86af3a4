/*
 * The loops for one width of vectors. Include with these defined; vector_loops_end.h undefines them:
 *
 *   WIDTH       the name            VECTOR   the type        LANES   numbers in it
 *   CHAINS      that fill the pipes: latency times pipes, as far as there are registers
 *   TARGET      the attribute of functions
 *   SPREAD(x)   LOAD(p)   STORE(p, v)   MULTIPLY_ADD(x, by, more)
 *   SUM         a vector of 64-bit sums   NO_SUM   ADD_BITS(sum, v)   TOTAL(sum)
 */
#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)
#define NAMED(what) JOINED(what, WIDTH)

TARGET static void NAMED(multiply_add)(double *ends)
{
    const VECTOR up_by = SPREAD(UP_BY), up = SPREAD(UP), down_by = SPREAD(DOWN_BY), down = SPREAD(DOWN);
    VECTOR x[CHAINS];

#pragma GCC unroll 16
    for (int chain = 0; chain < CHAINS; chain++)
        x[chain] = SPREAD(number_between_1_and_2((uint64_t)chain));
    for (int step = 0; step < STEPS; step += 2) {
#pragma GCC unroll 16
        for (int chain = 0; chain < CHAINS; chain++)
            x[chain] = MULTIPLY_ADD(x[chain], up_by, up);
#pragma GCC unroll 16
        for (int chain = 0; chain < CHAINS; chain++)
            x[chain] = MULTIPLY_ADD(x[chain], down_by, down);
    }
#pragma GCC unroll 16
    for (int chain = 0; chain < CHAINS; chain++)
        STORE(ends + chain * LANES, x[chain]);
}

TARGET static void NAMED(triad)(double *to, const double *newer, const double *older, size_t n)
{
    const VECTOR minus_1 = SPREAD(-1.0);

    for (size_t i = 0; i < n; i += 2 * LANES) {
        STORE(to + i, MULTIPLY_ADD(LOAD(older + i), minus_1, LOAD(newer + i)));
        STORE(to + i + LANES, MULTIPLY_ADD(LOAD(older + i + LANES), minus_1, LOAD(newer + i + LANES)));
    }
}

TARGET static uint64_t NAMED(mix)(const double *from, size_t n, int steps)
{
    const VECTOR up_by = SPREAD(UP_BY), up = SPREAD(UP), down_by = SPREAD(DOWN_BY), down = SPREAD(DOWN);
    SUM sum = NO_SUM;

    for (size_t i = 0; i < n; i += GROUP * LANES) {
        VECTOR x[GROUP];
#pragma GCC unroll 8
        for (int k = 0; k < GROUP; k++)
            x[k] = LOAD(from + i + k * LANES);
        for (int pair = 0; pair < steps / 2; pair++) {
#pragma GCC unroll 8
            for (int k = 0; k < GROUP; k++)
                x[k] = MULTIPLY_ADD(x[k], up_by, up);
#pragma GCC unroll 8
            for (int k = 0; k < GROUP; k++)
                x[k] = MULTIPLY_ADD(x[k], down_by, down);
        }
        if (steps % 2)
#pragma GCC unroll 8
            for (int k = 0; k < GROUP; k++)
                x[k] = MULTIPLY_ADD(x[k], up_by, up);
#pragma GCC unroll 8
        for (int k = 0; k < GROUP; k++)
            sum = ADD_BITS(sum, x[k]);
    }
    return TOTAL(sum);
}

#define LOOPS_OF(name, is_fused) {name, LANES, CHAINS, is_fused, NAMED(multiply_add), NAMED(triad), NAMED(mix)}
