// The layout of documents and the dtype of tokens, from an Arrow schema.

#pragma once

#include <cstdint>
#include <string>

#include "windeck/base/dtype.hpp"
#include "windeck/tokens/arrow.hpp"

namespace windeck {

/// The layout of the documents of a column.
struct TokenColumn {
    bool in_struct = false;  // the only child of a struct, as in a table
    bool lists = false;
    int offset_bytes = 0;
    std::int64_t width = 0;
    DType dtype = DType::int64;
    std::string text;  // "column 'tokens' of 'part0.arrow'"
};

/// The column a schema describes; `name` is that of the stream. Throws as shard_of_stream() does.
TokenColumn column_of(const ArrowSchema& schema, const std::string& name);

}  // namespace windeck
