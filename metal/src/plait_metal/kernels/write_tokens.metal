// One SIMD group moves one row piece: the `inner` units of one token at one outer index.
const int page_units = window[0], offset = window[1], block = window[2], outer = window[3], inner = window[4];
const int pieces = window[5], page_count = window[6];
const int piece = static_cast<int>(threadgroup_position_in_grid.x * 8 + simdgroup_index_in_threadgroup);
if (piece == 0 && thread_index_in_simdgroup == 0) fence[0] = 0;
if (piece < pieces) {
  const int token = piece / outer, o = piece % outer;
  const int page = pages[token], slot = slots[token];
  // Page 0 is the null page: a padding row stops here.
  if (page > 0 && page < page_count && slot >= 0 && slot < block) {
    const size_t start = static_cast<size_t>(page) * page_units + offset + (static_cast<size_t>(o) * block + slot) * inner;
    auto target = reinterpret_cast<device T*>(const_cast<device uint32_t*>(arena)) + start;
    auto source = rows + static_cast<size_t>(piece) * inner;
    for (int i = thread_index_in_simdgroup; i < inner; i += 32) target[i] = source[i];
  }
}
