#include "resources/node_room.h"

#include <stdlib.h>
#include <string.h>

enum { CORES, GPUS, MICS };

/* Ours: which node a job without accelerators blocks last. On Eurora jobs request GPUs far more often than MICs. */
enum { GPU_RANK = 2, MIC_RANK = 1 };

int64_t node_room_units(const int64_t *room, const int64_t *need, int64_t most)
{
    for (int32_t kind = 0; kind < NODE_KINDS; kind++)
        if (need[kind] > 0 && room[kind] < need[kind] * most) /* a division costs more than all else here */
            most = room[kind] < need[kind] ? 0 : room[kind] / need[kind];
    return most; /* a node that is away while its job runs on has less than no place */
}

static int by_place(const void *a, const void *b)
{
    const node_room_t *x = a, *y = b;
    if (x->blocked != y->blocked)
        return x->blocked < y->blocked ? -1 : 1;
    if (x->is_cold != y->is_cold)
        return x->is_cold - y->is_cold;
    if (x->cores != y->cores)
        return x->cores < y->cores ? -1 : 1;
    return x->node < y->node ? -1 : 1;
}

ask_t node_room_ask(const node_model_t *model, int32_t job)
{
    int32_t first = model->component ? model->component[job] : job;
    ask_t ask = {
        .units = model->units[first],
        .n = model->component ? model->n_components[job] : 1,
        .each = model->units + first,
        .need = model->need + (int64_t)first * NODE_KINDS,
        .within = model->within ? model->within + first : NULL,
    };
    for (int32_t k = 1; k < ask.n; k++)
        ask.units += ask.each[k];
    return ask;
}

/* The same, 0 on nodes on which it may not be. */
static inline int64_t fits_on(const node_model_t *model, int32_t node, const int64_t *room, const int64_t *need,
                              int64_t units, uint64_t within)
{
    return within && !(within & model->group[node]) ? 0 : node_room_units(room, need, units);
}

/* The accelerators that the job would block. */
static inline int64_t blocked(const int64_t *need, const int64_t *room)
{
    return (!need[GPUS] && room[GPUS] > 0 ? GPU_RANK : 0) + (!need[MICS] && room[MICS] > 0 ? MIC_RANK : 0);
}

static int32_t find_one(const node_model_t *model, const int64_t *room, const ask_t *ask, int32_t component,
                        const uint8_t *is_cold, node_room_t *candidates, placed_t *found)
{
    const int64_t *need = ask->need + (int64_t)component * NODE_KINDS;
    uint64_t within = ask->within ? ask->within[component] : 0;
    int64_t units = ask->n > 1 ? ask->each[component] : ask->units, fitting = 0;
    int32_t count = 0, n_found = 0;

    for (int32_t node = 0; node < model->n_nodes; node++, room += NODE_KINDS) {
        node_room_t *one = &candidates[count];
        int64_t fits = fits_on(model, node, room, need, units, within);
        *one = (node_room_t){.fits = fits, .node = node, .is_cold = is_cold && is_cold[node]};
        fitting += one->fits;
        count += one->fits > 0;
        if (model->placing == PLACE_PACK) {
            one->cores = room[CORES];
            one->blocked = blocked(need, room);
        } else if (fitting >= units && !is_cold) {
            break; /* the nodes with the highest numbers are not needed */
        }
    }
    if (fitting < units)
        return 0;
    if (model->placing == PLACE_PACK || is_cold)
        qsort(candidates, (size_t)count, sizeof *candidates, by_place);
    for (; units > 0; n_found++) {
        const node_room_t *one = &candidates[n_found];
        int64_t taken = one->fits < units ? one->fits : units;
        found[n_found] = (placed_t){.node = one->node, .count = (int32_t)taken};
        units -= taken;
    }
    return n_found;
}

int32_t node_room_find(const node_model_t *model, int64_t *room, const ask_t *ask, const uint8_t *is_cold,
                       node_room_t *candidates, placed_t *found)
{
    int32_t n_found = find_one(model, room, ask, 0, is_cold, candidates, found), last = n_found, k = 1;
    if (ask->n == 1 || !n_found)
        return n_found;
    node_room_change(ask->need, room, found, n_found, -1);
    for (; k < ask->n && last; k++, n_found += last) {
        last = find_one(model, room, ask, k, is_cold, candidates, found + n_found);
        node_room_change(ask->need + (int64_t)k * NODE_KINDS, room, found + n_found, last, -1);
    }
    node_room_change_all(ask, room, found, n_found, 1);
    return last ? n_found : 0;
}

static int fits_as_chosen(const int64_t *room, const int64_t *need, const placed_t *chosen, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (node_room_units(room + (int64_t)chosen[i].node * NODE_KINDS, need, chosen[i].count) < chosen[i].count)
            return 0;
    return 1;
}

int32_t node_room_as_chosen(int64_t *room, const ask_t *ask, const placed_t *chosen, int32_t count, placed_t *found)
{
    int32_t at = 0, fits = 1;
    for (int32_t k = 0; fits && k < ask->n; k++) {
        const int64_t *need = ask->need + (int64_t)k * NODE_KINDS;
        int32_t own = node_room_of(ask, k, chosen + at, count - at);
        fits = fits_as_chosen(room, need, chosen + at, own);
        if (ask->n > 1 && fits)
            node_room_change(need, room, chosen + at, own, -1);
        at += fits ? own : 0;
    }
    if (ask->n > 1)
        node_room_change_all(ask, room, chosen, at, 1);
    if (!fits)
        return 0;
    memcpy(found, chosen, (size_t)count * sizeof *found);
    return count;
}

int32_t node_room_of(const ask_t *ask, int32_t component, const placed_t *placed, int32_t count)
{
    if (ask->n == 1)
        return count;
    int64_t left = ask->each[component];
    int32_t own = 0;
    while (own < count && left > 0)
        left -= placed[own++].count;
    return own;
}

void node_room_change(const int64_t *need, int64_t *room, const placed_t *placed, int32_t count, int sign)
{
    for (; count; count--, placed++)
        for (int32_t kind = 0; kind < NODE_KINDS; kind++)
            room[(int64_t)placed->node * NODE_KINDS + kind] += sign * placed->count * need[kind];
}

void node_room_change_all(const ask_t *ask, int64_t *room, const placed_t *placed, int32_t count, int sign)
{
    for (int32_t k = 0; k < ask->n; k++) {
        int32_t own = node_room_of(ask, k, placed, count);
        node_room_change(ask->need + (int64_t)k * NODE_KINDS, room, placed, own, sign);
        placed += own;
        count -= own;
    }
}
