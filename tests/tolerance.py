"""The tolerances of the whole project, each with where it comes from. Change one only with its reason."""

from __future__ import annotations

# Two float32 implementations of a two-layer model add the same products in another order. Seen: 2e-5.
LOGPROB_FLOAT32 = 1e-4

# Attention that rotates takes exact angles, transformers takes float32 ones, which past 1,024 are rounded by up to
# 2^-14, and so were their frequencies: about as much as logprobs of two implementations may differ by.
LOGPROB_EXACT_ANGLES = 2e-4

# BLOOM's activation is the error function in vLLM and its tanh approximation, off by up to 5e-4, in transformers. Seen:
# 9e-4; another slope moves logprobs by 0.1 and more.
LOGPROB_OTHER_ACTIVATION = 3e-3

# Re-rotated keys have been rounded once more for every crossing, and their errors pass through all that follows.
LOGPROB_AFTER_CROSSING = 2e-4

# Root mean square over an answer, of an engine in bfloat16 against float32: weights, activations and keys have 8 bits.
# Seen on the CPU: 0.14, after crossings 0.09; at a wrong scale 4.4 to 7.5.
LOGPROB_RMS_BFLOAT16 = 0.3

# The same where layers with recurrent states in float32 are beside attention, against float64. Seen: 0.017 and 0.024;
# with far pages at other distances 0.053 and 0.090.
LOGPROB_RMS_STATES_BFLOAT16 = 0.04

# Two engines in bfloat16 whose cached keys differ in some last bits: logits between 2 and 4 are rounded to 2^-6.
# Seen: 3.1e-2; of keys that nobody turned 0.5.
LOGPROB_LAST_BITS_BFLOAT16 = 2.0**-4

# The same of a KV cache in float8, whose numbers have 4 bits. Seen on the CPU: 0.48 with vLLM's own rotation, 0.34 with
# ours in attention.
LOGPROB_RMS_FLOAT8 = 1.0

# The same of a cache alone in float8 e4m3, all else in float32: keys and values have 4 bits, and vLLM's cast on the CPU
# cuts the others off. Seen: 0.16; with queries turned the wrong way 1.17.
LOGPROB_RMS_FLOAT8_CACHE = 0.4

# The same of a cache in int8, each key and value with a scale of its own: they have 8 bits. Seen: 1.8e-2.
LOGPROB_RMS_INT8_CACHE = 0.05

# How many times larger errors of logprobs may be from float8 keys that were turned than from recomputed ones, root mean
# squares over answers that crossed up to three times: keys are rounded once more for each. Seen: 1.08; of e5m2 1.06.
FLOAT8_TURNED_OVER_RECOMPUTED = 1.3

# A wrong rotation must be unmistakable: logprobs of the tiny checkpoints then differ by 4 to 15.
LOGPROB_WRONG_SCALE = 1.0

# A number up to 1 that was computed exactly, and rounded to float32.
ROUNDED_TO_FLOAT32 = 2.0**-24

# What a few float32 operations on the way to one number lose of it, where nothing cancels: a slope, a norm, an angle.
SOME_FLOAT32_OPERATIONS = 16 * 2.0**-24

# float32 has 24 bits of mantissa, transformers computes its frequencies in it with a few roundings.
INV_FREQ_RELATIVE = 1e-6

# Where it blends two of them, one up to 1,024 times the other, what a weight loses by the rounding of numbers near 1 is
# as much more of the smaller one. Seen: 1.9e-5.
INV_FREQ_BLENDED_RELATIVE = 1024 * 2.0**-24

# A float32 key is rounded when it is cached and once more when it is turned, each time by 2^-24 of its pair's length.
KEY_ROUNDING = 4 * 2.0**-24

# Relative L2 error of bfloat16 keys after 1 to 6 crossings by a factor of 2: each rounds by 1.66e-3, and roundings add
# up as their squares do. YaRN's are larger: its attention factor moves every key of a block in the same direction.
REROTATED_YARN_BFLOAT16 = (2.4e-3, 3.2e-3, 3.9e-3, 4.6e-3, 5.2e-3, 5.8e-3)
REROTATED_NTK_BFLOAT16 = (2.4e-3, 3.0e-3, 3.4e-3, 3.8e-3, 4.1e-3, 4.5e-3)

# The same of float8 keys that carry no attention factor, so that pairs which do not turn are rounded once and never
# again: e4m3 has 4 bits and rounds by 2.65e-2, e5m2 has 3 and rounds by 5.3e-2. Seen: 3.39e-2 to 5.57e-2, and 6.69e-2
# to 10.7e-2. With the factor on keys, 3.75e-2 to 11.8e-2 and 7.8e-2 to 21.9e-2.
REROTATED_YARN_E4M3 = (3.5e-2, 4.1e-2, 4.6e-2, 5.0e-2, 5.4e-2, 5.7e-2)
REROTATED_YARN_E5M2 = (6.9e-2, 8.0e-2, 9.0e-2, 9.8e-2, 10.4e-2, 11.0e-2)

# The same of keys that each have a scale of their own, in int8 and in float8 e4m3. Such a scale grows where a turned
# key needs it, and takes the attention factor. Seen: 8.73e-3 to 1.49e-2, and 3.30e-2 to 5.50e-2.
OWN_SCALES_INT8 = (9.1e-3, 1.09e-2, 1.24e-2, 1.36e-2, 1.47e-2, 1.56e-2)
OWN_SCALES_FLOAT8 = (3.5e-2, 4.1e-2, 4.6e-2, 5.0e-2, 5.4e-2, 5.75e-2)

# How far such a scale may be off, relative: it is one product in float32, of a largest number in float32.
OWN_SCALE = 1e-5

# float32 cosine and sine, absolute: an eighth of a turn is rounded by 6e-8 when it becomes an angle, and its polynomial
# as much again. Seen: 1.24e-7, there; with fused multiply-adds no more.
COS_SIN_OF_TURNS = 1.3e-7

# A component of a turned key before it is stored, in parts of its pair's length: 1.3e-7 of both the cosine and the sine
# are 3 * 2^-24; the attention ratio, the product with it, two products and their sum round once each. Seen: 3.2.
KEY_TURNED_BY_KERNEL = 8 * 2.0**-24

# What storing a key rounds, in parts of it. Triton's interpreter cuts bfloat16 off where a GPU rounds to nearest, which
# doubles it; float16 and float8 are rounded to nearest by both. Below the smallest normal number of float8, half of its
# last bit is absolute; of int8 always.
KEY_STORED_BY_INTERPRETER = {
    "float32": 0.0,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-11,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "int8": 0.0,
}
KEY_STORED_AT_ZERO = {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "int8": 0.5}

# Logits of size 6, of a two-layer decoder, after the same float32 sums in another order. Seen: 1.6e-5.
LOGIT_TINY_DECODER = 1e-4

# The same in bfloat16, whose numbers have 8 bits. Seen: 0.43.
LOGIT_TINY_DECODER_BFLOAT16 = 1.0

# One layer's attention over values of size 1 in float32, against itself in float64.
ATTENTION_FLOAT32 = 1e-5
# Two float64 computations of the same attention: every output is some hundreds of sums and products of numbers near 1,
# each rounded by 1.1e-16; the exponentials of scores up to 10 keep their absolute error of 1e-15 as a relative one.
ORACLE_FLOAT64 = 1e-12

# transformers raises a float32 base, rounded by 2^-24, to the power of the head's number: at most 64 of them in tests,
# and rounds the slope and its product with the position once more each.
ALIBI_BIAS_RELATIVE = 66 * 2.0**-24

# Outputs of two encodings of the same random sequence differ by 0.1 and more; what agrees, agrees within 1e-12.
ENCODINGS_DIFFER = 1e-3
# Attention may be as wrong as plain torch in the same data type, once for the order of its sums and once for what it
# rounds elsewhere (weights before they are normalised, where torch rounds them after).
ATTENTION_TIMES_TORCH = 2.0
# The same where weights and turned queries are rounded to bfloat16, too, and not the output alone: three errors of one
# size in place of one, the square root of 3 in the mean. Seen: 1.2 to 1.5, and 2.4 of 192 numbers.
ATTENTION_OF_BFLOAT16_TIMES_TORCH = 3.0

# CoPE adds gates in units of 2^-23, and so rounds each by up to 2^-24. Gates are rounded independently of each other: n
# of them move a position by as much as the square root of n times that. Seen on an H100, of 90 keys: outputs off by
# 1.8e-6.
COPE_GATE_ROUNDING = 2.0**-24

# Attention's output before it is timed, as a part of its norm. CoPE in float32: scores that are moved alike are rounded
# alike, by 1e-6, and a position adds up to 63 of their gates. Seen: 1.1e-5; without CoPE 9e-7. bfloat16 rounds outputs
# by 2^-9 at most, and vLLM's rounds weights by as much. Seen: 3.4e-3. One wrong key among a thousand is 3e-2.
ATTENTION_OUTPUT = {"float32": 1e-4, "bfloat16": 2.0**-7}

# What storing a number rounds it by, in parts of it: half of its last bit. Below the smallest normal number of float16
# and float8 the last bit does not shrink any more, and half of it is absolute.
ROUNDED_TO_NEAREST = {
    "float32": 0.0,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
ROUNDED_TO_NEAREST_AT_ZERO = {"float32": 0.0, "bfloat16": 0.0, "float16": 2.0**-25, "float8_e4m3fn": 2.0**-10}

# How many times smaller logit errors are than with float32 tables of float32 angles, around position 1,048,000. Those
# angles make logits wrong by 6.2e-3 rms. Rounding queries and keys to bfloat16 is 2.4e-3, which nothing can take away.
# Seen: 2.7 and, elsewhere from 600,000 to 1,100,000, 1.8 to 3.0; 21 in float16; 88,000 in float32.
LOGITS_BETTER_THAN_TABLES = {"bfloat16": 2.5, "float16": 15.0, "float32": 10_000.0}

# A float32 table's angle is a float32 product, rounded by 2^-24 of it; so is the frequency, but alike in both.
TABLE_ANGLE_RELATIVE = 2.0**-24

# Two numbers that differ in the last bits of float32, each rounded to bfloat16: at most one unit of their last place.
BFLOAT16_LAST_BIT = 2.0**-7

# Rotated by cosines and sines in bfloat16, products rounded to it, too, against exact angles: error norm over norm.
# Each of the roundings is 1.7e-3 rms. One wrong row in a few thousand is as much.
ROTATED_BY_BFLOAT16_TABLE = 2.0**-6

# One output of attention in bfloat16 against float32 inside, as a part of its own norm: weights and outputs are rounded
# by 1.1e-3 rms each. Seen: 3.7e-3 for 2 to 8,192 keys. One wrong key among some hundreds is more.
ATTENTION_ROW_BFLOAT16 = 2.0**-6

# The same of CoPE in eager torch, whose logits are rounded to bfloat16 as well: some output in thousands is wrong by
# that much more. Seen: 3.4e-2. It tells conventions apart, not single keys.
ATTENTION_ROW_EAGER_BFLOAT16 = 2.0**-3

# Logit errors over those with float32 tables, where rounding queries and keys to bfloat16 makes nearly all of both:
# that is not the same to the last digit.
LOGITS_OVER_TABLES = 1.01
