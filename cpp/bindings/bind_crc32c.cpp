#include <cstdint>

#include "arrays.hpp"
#include "bindings.hpp"
#include "held.hpp"
#include "windeck/crc32c.hpp"

namespace windeck {
namespace {

constexpr const char* doc = R"(The CRC32C (Castagnoli) of bytes.

Parameters
----------
buffer : bytes, memoryview, uint8 array or any contiguous buffer
    The bytes of its memory, whatever its items are.
crc : int
    The sum of bytes that come before these.

Returns
-------
int
    In [0, 2**32). crc32c(b, crc32c(a)) == crc32c(a + b).

Raises
------
TypeError
    For what has no buffer.
ValueError
    For a buffer that is not contiguous, or a crc outside of [0, 2**32).

Notes
-----
O(n); other Python threads run meanwhile.

Examples
--------
>>> from windeck._core import crc32c
>>> hex(crc32c(b"123456789"))
'0xe3069283'
>>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
True
)";

std::uint32_t sum(const py::object& buffer, const py::object& crc) {
    const auto before = static_cast<std::uint32_t>(integer(crc, "crc", 0, 0xffffffff));
    const Held held(buffer);
    const py::gil_scoped_release unlocked;
    return crc32c(held.bytes(), before);
}

}  // namespace

void bind_crc32c(py::module_& m) {
    m.def("crc32c", &sum, py::arg("buffer"), py::arg("crc") = 0, doc);
}

}  // namespace windeck
