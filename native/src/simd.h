// Vectors of one instruction set. Everything in namespace JAXDML_ISA is compiled once for each set. Each set has its
// own namespace, so that a linker never merges code of two sets.
//
// Kernels contain no intrinsics: they use what the file of a set defines. Such a file defines constants, includes
// vectors.h, and defines functions. "128 bits" below means each 128-bit part of a vector.
//
// Constants and macros
//   kBytes, kRegisters     bytes of a vector; vectors that a kernel can keep in registers
//   kDepth                 products that one 32-bit lane adds up in one instruction
//   Activation, Cell       the 8-bit type of an activation, and the type of a product's operands; a weight is int8
//   kRows, kVectors        rows of a full tile of the microkernel, and vectors per row
//   JAXDML_TILE            whether the microkernel is inlined
//   JAXDML_HAS_BYTE_PRODUCTS, JAXDML_HAS_TILES, JAXDML_HAS_VBMI   dot_bytes is defined; AMX; look_up_by_vbmi is defined
//   JAXDML_HAS_WINDOWS     windows_of is defined
// Products, modulo 2**32
//   dot_cells              sum + the kDepth products of activations and weights in each lane
//   CellSum, total_of      the accumulator of dot_cells, and its sums; I32 unless partial sums are faster
//   dot_words              sum + the two products of signed 16-bit numbers in each lane
//   dot_bytes              sum + the four products of bytes in each lane: unsigned by signed, or signed by signed where
//                          Activation is signed
//   dot_lane               dot_cells with all lanes of x and lane kLane of y, where JAXDML_HAS_DOTS_BY_LANE is defined
//   dot_pairs              sum + the products of matrices x [2, 8] and the transpose of y [2, 8], bytes, where
//                          JAXDML_HAS_PRODUCTS_OF_PAIRS is defined, as are load_pair, low_dwords and high_dwords
//   add_pairs              without dot_bytes: adds two products of an unsigned byte (at most 15) and a signed byte to
//                          each int16, which holds eight such pairs without overflow
//   weights_at             a vector of weights as cells
//   multiply_small         the products of x from 0 to 2**15 - 1 (also negative where Activation is signed) and y from
//                          -2**15 to 2**15 - 1
// Integers
//   greater, lesser, greater_bytes (unsigned), add_words (saturated), sum_of, largest_of
//   to_words, to_bytes     narrow x and then y to half the width, saturated, in 128 bits
// Floats
//   rounded                to the nearest integer, ties to even; INT32_MIN for NaN and where it does not fit
//   floats, doubles        conversions; lower_doubles and upper_doubles convert half a vector
//   greater, lesser        the maximum and the minimum; NaN if y is NaN, y or NaN if x is NaN, either if both are zeros
//   nearest, rounded_down, rounded_up, square_root, multiply_add, subtract_product (z - x * y)
//   product                x * y, where a product that rounds to 2**-126 is not flushed to zero
//   load_halves            float16
//   store_past_caches      to aligned memory; finish_stores_past_caches must run before another thread reads it
// Loads and stores
//   from_unsigned_bytes, from_unsigned_words, lanes_of_nibbles   kLanes of them; the low nibble of a byte is first
//   copy_bytes             memcpy of a few bytes, without a call
//   load_bytes, store_bytes   the first bytes of a vector, from 1 to kBytes; a load reads no more, and pads with zeros
//   load_some, store_some  the same for a vector and for 16 bytes; a larger count means all bytes
//   store_cells            the first bytes of 16, each widened to a cell
// Shuffles
//   low_bytes, high_bytes, low_floats, high_floats, low_pairs, high_pairs   interleave the lower or the upper halves of
//                          x and y, in 128 bits
//   transpose_fours        transposes the 4 x 4 bytes of 128 bits
//   gather_firsts          the first lanes of all 128 bits, then the second lanes, and so on
//   windows_of             lane i gets the four bytes that begin at byte kStride * i, for a stride of 1 or 2, after the
//                          flip; bytes whose bits are not set are not read, and are those of `otherwise`
//   every_other            the bytes of x with even indices, then those of y
//   part_of                the kPart-th 128 bits
//   transpose_parts        transposes 128 bits of the vectors i, i + 4, i + 8 and so on
//   transpose_dwords       transposes 4 x 4 dwords
//   interleave_rows        kDepth rows to four vectors of activations; in 128 bits, vector i has the positions 4 * i to
//                          4 * i + 3
//   interleave_weights     the same for weights
//   interleaved            16 bytes of kDepth rows, after the flip; lane p has byte p of each row
//   pack_whole_tile        the same for kTile bytes, stored
//   interleave_pixels      kDepth adjacent pixels of 16 channels; put_lanes_in_order sorts the lanes of their sums
//   split_bytes            the bytes at even positions, and those at odd positions; either pointer may be null
//   Table, table_of, entries_at   a table of 256 bytes, and its entries at the bytes of x
#pragma once

#if defined(__AVX512VNNI__)
#include "simd_avx512_vnni.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(__aarch64__)
#include "simd_neon.h"
#else
#error "there is no file simd_*.h for this processor"
#endif
