/* A PCI address: "00000000:07:00.0" in NVML, "0000:07:00.0" or "07:00.0" elsewhere. */
#ifndef TWIN_NVML_PCI_H
#define TWIN_NVML_PCI_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    unsigned int domain, bus, device;
} pci_place_t;

static inline bool pci_parse(const char *text, size_t size, pci_place_t *place)
{
    char copy[33]; /* the longest form has 16 characters */
    unsigned int function;
    size_t length = strnlen(text, size);

    if (length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    if (sscanf(copy, "%8x:%2x:%2x.%1x", &place->domain, &place->bus, &place->device, &function) == 4)
        return true;
    place->domain = 0;
    return sscanf(copy, "%2x:%2x.%1x", &place->bus, &place->device, &function) == 3;
}

#endif
