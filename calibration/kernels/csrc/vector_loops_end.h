/* Undefines what vector_loops.h was included with. */
#undef WIDTH
#undef VECTOR
#undef LANES
#undef CHAINS
#undef TARGET
#undef SPREAD
#undef LOAD
#undef STORE
#undef MULTIPLY_ADD
#undef SUM
#undef NO_SUM
#undef ADD_BITS
#undef TOTAL
#undef JOINED_
#undef JOINED
#undef NAMED
#undef LOOPS_OF
