#include "resources/caps.h"

int32_t caps_after(const caps_t *caps, int64_t now_s)
{
    int32_t low = 0, high = caps->n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (caps->from_s[middle] <= now_s)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
