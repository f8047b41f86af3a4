#include "resources/caps.h"

#include "search.h"

int32_t caps_after(const caps_t *caps, int64_t now_s)
{
    return FIRST(k, 0, caps->n, caps->from_s[k] > now_s);
}

int64_t caps_at(const caps_t *caps, int64_t now_s)
{
    int32_t k = caps_after(caps, now_s);
    return caps->uw[k ? k - 1 : 0];
}
