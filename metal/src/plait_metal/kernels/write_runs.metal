// A threadgroup of 256 threads moves CHUNK consecutive units of one row to the pages of its run.
const int page_units = window[0], page_count = window[4], table_width = window[5];
const uint offset = window[1], units = window[2];
const int row_count = window[3];
const uint chunks = (units + CHUNK - 1) / CHUNK;
const int row = threadgroup_position_in_grid.x / chunks;
const uint first = threadgroup_position_in_grid.x % chunks * CHUNK;
if (thread_position_in_grid.x == 0) fence[0] = 0;
// A run never starts on the null page: a padding row stops here.
if (row < row_count && tables[static_cast<size_t>(row) * table_width] > 0) {
  auto words = reinterpret_cast<device T*>(const_cast<device uint32_t*>(arena));
  auto source = rows + static_cast<size_t>(row) * units;
  auto table = tables + static_cast<size_t>(row) * table_width;
  for (uint i = thread_index_in_threadgroup; i < CHUNK && first + i < units; i += 256) {
    const uint position = offset + first + i;
    const int column = position / page_units;
    const int page = column < table_width ? table[column] : 0;
    if (page > 0 && page < page_count) {
      words[static_cast<size_t>(page) * page_units + position % page_units] = source[first + i];
    }
  }
}
