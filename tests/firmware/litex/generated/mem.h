//--------------------------------------------------------------------------------
//--------------------------------------------------------------------------------
#ifndef __GENERATED_MEM_H
#define __GENERATED_MEM_H

#ifndef MAIN_RAM_BASE
#define MAIN_RAM_BASE 0x40000000L
#define MAIN_RAM_SIZE 0x00100000
#endif

#ifndef WINDOW_BASE
#define WINDOW_BASE 0x80000000L
#define WINDOW_SIZE 0x00100000
#endif

#ifndef CSR_BASE
#define CSR_BASE 0xf0000000L
#define CSR_SIZE 0x00010000
#endif

#ifndef MEM_REGIONS
#define MEM_REGIONS "MAIN_RAM  0x40000000 0x100000 \nWINDOW    0x80000000 0x100000 \nCSR       0xf0000000 0x10000 "
#endif
#endif
