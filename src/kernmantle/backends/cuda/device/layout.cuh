// How matrices of halves or of float32 lie in shared memory.
#pragma once
#include "ptx.cuh"

namespace km {

// Rows of 128 bytes, each in eight pieces of 16 bytes: piece p of row r stands in the place of piece p ^ r % 8. Eight lanes that
// read a piece of eight neighbouring rows then meet in no bank. Copies by the copy engine and wgmma know it as SWIZZLE_128B.
// The offset in bytes from the beginning of the row:
KM_DEVICE int swizzle_128(int row, int piece) { return (piece ^ (row % 8)) << 4; }

}  // namespace km
