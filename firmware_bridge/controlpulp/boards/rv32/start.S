/*
 * Reset: sets the stack, zeroes memory, sets the trap vector, then calls C. There is one hart. a0 is its number, a1 the
 * address of a device tree if the loader passes one; C gets both.
 */
    .section .text.start
    .globl _start
_start:
#ifdef COUNTERS
    csrw mcountinhibit, zero /* cv32e40p counts cycles and instructions only then; other cores lack the register */
#endif
    la sp, stack_top
    la t0, bss_start
    la t1, bss_end
1:  bgeu t0, t1, 2f
    sw zero, 0(t0)
    addi t0, t0, 4
    j 1b
2:  la t0, trap
    csrw mtvec, t0
    call board_main

/* Interrupts only set flags and move the timer, so only the caller-saved registers must be saved. */
    .balign 256 /* cv32e40p ignores the lower bits of mtvec */
trap:
    addi sp, sp, -64
    sw ra, 0(sp)
    sw t0, 4(sp)
    sw t1, 8(sp)
    sw t2, 12(sp)
    sw t3, 16(sp)
    sw t4, 20(sp)
    sw t5, 24(sp)
    sw t6, 28(sp)
    sw a0, 32(sp)
    sw a1, 36(sp)
    sw a2, 40(sp)
    sw a3, 44(sp)
    sw a4, 48(sp)
    sw a5, 52(sp)
    sw a6, 56(sp)
    sw a7, 60(sp)
    csrr a0, mcause
    call board_trap
    lw ra, 0(sp)
    lw t0, 4(sp)
    lw t1, 8(sp)
    lw t2, 12(sp)
    lw t3, 16(sp)
    lw t4, 20(sp)
    lw t5, 24(sp)
    lw t6, 28(sp)
    lw a0, 32(sp)
    lw a1, 36(sp)
    lw a2, 40(sp)
    lw a3, 44(sp)
    lw a4, 48(sp)
    lw a5, 52(sp)
    lw a6, 56(sp)
    lw a7, 60(sp)
    addi sp, sp, 64
    mret
