// GCC's _tile_loadconfig (12 at least) says that it reads 8 of the 64 bytes, so the compiler leaves
// out the stores of the others before it, and the first instruction on a tile ends the process.
#if defined(__GNUC__) && defined(__AMX_TILE__)
#include <immintrin.h>
#define _tile_loadconfig(config)                         \
  do {                                                   \
    __asm__ volatile("" : : "r"(config) : "memory");     \
    (_tile_loadconfig)(config);                          \
  } while (0)
#endif
