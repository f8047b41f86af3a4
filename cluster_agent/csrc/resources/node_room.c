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

/* The same, 0 on nodes on which it may not be. */
static inline int64_t fits_on(const node_model_t *model, int32_t node, const int64_t *room, const ask_t *ask)
{
    return ask->within && !(ask->within & model->group[node]) ? 0 : node_room_units(room, ask->need, ask->units);
}

int32_t node_room_find(const node_model_t *model, const int64_t *room, const ask_t *ask, const uint8_t *is_cold,
                       node_room_t *candidates, placed_t *found)
{
    const int64_t *need = ask->need;
    int64_t units = ask->units, fitting = 0;
    int32_t count = 0, n_found = 0;

    for (int32_t node = 0; node < model->n_nodes; node++, room += NODE_KINDS) {
        node_room_t *one = &candidates[count];
        *one = (node_room_t){.fits = fits_on(model, node, room, ask), .node = node, .is_cold = is_cold && is_cold[node]};
        fitting += one->fits;
        count += one->fits > 0;
        if (model->placing == PLACE_PACK) {
            one->cores = room[CORES];
            one->blocked = (!need[GPUS] && room[GPUS] > 0 ? GPU_RANK : 0) + (!need[MICS] && room[MICS] > 0 ? MIC_RANK : 0);
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

int32_t node_room_as_chosen(const int64_t *room, const ask_t *ask, const placed_t *chosen, int32_t count,
                            placed_t *found)
{
    for (int32_t i = 0; i < count; i++)
        if (node_room_units(room + (int64_t)chosen[i].node * NODE_KINDS, ask->need, chosen[i].count) < chosen[i].count)
            return 0;
    memcpy(found, chosen, (size_t)count * sizeof *found);
    return count;
}

void node_room_change(const int64_t *need, int64_t *room, const placed_t *placed, int32_t count, int sign)
{
    for (; count; count--, placed++)
        for (int32_t kind = 0; kind < NODE_KINDS; kind++)
            room[(int64_t)placed->node * NODE_KINDS + kind] += sign * placed->count * need[kind];
}
