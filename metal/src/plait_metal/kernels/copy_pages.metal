// A threadgroup of 256 threads copies CHUNK consecutive words of one page.
const int page_words = window[0], count = window[1], page_count = window[2];
const int chunks = (page_words + CHUNK - 1) / CHUNK;
const int index = threadgroup_position_in_grid.x / chunks;
const int first = threadgroup_position_in_grid.x % chunks * CHUNK;
if (thread_position_in_grid.x == 0) fence[0] = 0;
if (index < count) {
  const int from = sources[index], to = targets[index];
  // The null page is no target: a padding pair stops here.
  if (from >= 0 && from < page_count && to > 0 && to < page_count) {
    auto target = const_cast<device uint32_t*>(arena) + static_cast<size_t>(to) * page_words;
    auto source = arena + static_cast<size_t>(from) * page_words;
    for (int i = thread_index_in_threadgroup; i < CHUNK && first + i < page_words; i += 256) target[first + i] = source[first + i];
  }
}
