"""Attention under every position encoding, in float64, transcribed from the papers: what kernels are measured against.

One sequence at a time. `query` is `[num_queries, num_heads, head_dim]`, its tokens are the last of the sequence; `key`
and `value` are `[num_keys, num_kv_heads, head_dim]`; query head `h` reads key head `h // (num_heads // num_kv_heads)`.
`scale` multiplies the product of query and key: mostly `head_dim ** -0.5`, 1 in T5.
"""
