// Writes keys and values into the paged cache. The Python side is attention.py.

#include "paged.h"

namespace posenc {

struct New {
  const void* keys;
  const void* values;
  void* cache;
  const int64_t* slot_mapping;  // -1 for a token that is not cached
  float* key_norms;             // null without a window
  int64_t key_stride_token, key_stride_head;
  int64_t value_stride_token, value_stride_head;
  int64_t cache_stride_block, cache_stride_head;
  int64_t num_slots, num_kv_heads, head_dim, block_size;
};

// How many tokens, the first of which is `token`, go to adjacent slots of one block; at most 32.
inline int64_t run_length(const New& fresh, int64_t token) {
  const int64_t first = fresh.slot_mapping[token];
  const int64_t room = fresh.block_size - first % fresh.block_size;
  const int64_t most = std::min<int64_t>({kTile, room, fresh.num_slots - token});
  int64_t run = 1;
  while (run < most && fresh.slot_mapping[token + run] == first + run) ++run;
  return run;
}

// Transposes the keys of a run of tokens, 16 dimensions of all tokens at a time: tokens of a step lie so far apart that
// the first-level cache keeps only few of them.
template <typename T>
void store_keys(const New& fresh, const T* keys, int64_t run, T* to) {
  constexpr int64_t kDims = 16;
  T some[kTile][kDims];
  for (int64_t d = 0; d < fresh.head_dim; d += kDims) {
    for (int64_t t = 0; t < run; ++t) std::copy_n(keys + t * fresh.key_stride_token + d, kDims, some[t]);
    for (int64_t i = 0; i < kDims; ++i)
      for (int64_t t = 0; t < run; ++t) to[(d + i) * fresh.block_size + t] = some[t][i];
  }
}

template <typename T>
float norm_of(const T* key, int64_t head_dim) {
  float square = 0.0f;
#pragma omp simd reduction(+ : square)
  for (int64_t d = 0; d < head_dim; ++d) square += to_float(key[d]) * to_float(key[d]);
  return std::sqrt(square);
}

template <typename T>
void store_all(const New& fresh) {
  const int64_t size = fresh.block_size;
  // The tokens of a block come in order, and one thread has all tokens of a head. So the norms before a token's are
  // written when the token's is.
#pragma omp parallel for schedule(dynamic)
  for (int64_t head = 0; head < fresh.num_kv_heads; ++head) {
    for (int64_t token = 0, run = 1; token < fresh.num_slots; token += run) {
      run = 1;
      if (fresh.slot_mapping[token] < 0) continue;
      run = run_length(fresh, token);
      const int64_t block = fresh.slot_mapping[token] / size, offset = fresh.slot_mapping[token] % size;
      const T* keys = static_cast<const T*>(fresh.keys) + token * fresh.key_stride_token + head * fresh.key_stride_head;
      const T* values =
          static_cast<const T*>(fresh.values) + token * fresh.value_stride_token + head * fresh.value_stride_head;
      T* to = static_cast<T*>(fresh.cache) + block * fresh.cache_stride_block + head * fresh.cache_stride_head;
      store_keys(fresh, keys, run, to + offset);
      for (int64_t t = 0; t < run; ++t)
        std::copy_n(values + t * fresh.value_stride_token, fresh.head_dim, to + (size + offset + t) * fresh.head_dim);
      if (!fresh.key_norms) continue;
      float* norms = fresh.key_norms + (block * fresh.num_kv_heads + head) * size + offset;
      for (int64_t t = 0; t < run; ++t) {
        const float before = offset + t ? norms[t - 1] : 0.0f;
        const float norm = norm_of(keys + t * fresh.key_stride_token, fresh.head_dim);
        norms[t] = norm > before || std::isnan(norm) ? norm : before;  // after a NaN, every later norm is NaN
      }
    }
  }
}

}  // namespace posenc

extern "C" void posenc_store(const posenc::New* fresh, int32_t dtype) {
  switch (dtype) {
    case 0:
      return posenc::store_all<float>(*fresh);
    case 1:
      return posenc::store_all<posenc::BFloat16>(*fresh);
    default:
      return posenc::store_all<posenc::Half>(*fresh);
  }
}
