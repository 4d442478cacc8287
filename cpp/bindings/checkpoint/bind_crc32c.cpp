#include <cstddef>
#include <cstdint>

#include "base/buffers.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "windeck/checkpoint/crc32c.hpp"

namespace windeck {
namespace {

constexpr const char* doc = R"(Return the CRC32C (Castagnoli) checksum of bytes.

Parameters
----------
buffer : bytes, memoryview, uint8 array or any contiguous buffer
    The bytes of its memory, for items of any type.
crc : int
    The checksum of the bytes before these.

Returns
-------
int
    In [0, 2**32). crc32c(b, crc32c(a)) == crc32c(a + b).

Raises
------
TypeError
    An object without a buffer.
ValueError
    A buffer that is not contiguous, or a crc outside [0, 2**32).

Notes
-----
O(n). Releases the GIL for 16 KiB or more.

Examples
--------
>>> from windeck._core import crc32c
>>> hex(crc32c(b"123456789"))
'0xe3069283'
>>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
True
)";

constexpr const char* joined_doc =
    R"(Return the CRC32C of bytes a + b from the checksums of a and of b.

Parameters
----------
first, second : int
    The checksums of a and of b, in [0, 2**32).
second_size : int
    The number of bytes of b, in [0, 2**63).

Returns
-------
int
    crc32c(a + b).

Raises
------
TypeError, ValueError
    An argument that is not an integer, or is outside its range.

Notes
-----
O(log n).

Examples
--------
>>> from windeck._core import crc32c, crc32c_joined
>>> crc32c_joined(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
True
)";

/// From this size on, the sum takes longer than a switch of threads.
constexpr std::size_t worth_unlocking = 16 << 10;

std::uint32_t sum(const py::object& buffer, const py::object& crc) {
    const auto before = static_cast<std::uint32_t>(integer(crc, "crc", 0, 0xffffffff));
    const Buffer held(buffer);
    if (held.bytes().size() < worth_unlocking) return crc32c(held.bytes(), before);
    const GilRelease unlocked;
    return crc32c(held.bytes(), before);
}

std::uint32_t joined(const py::object& first, const py::object& second, const py::object& size) {
    return crc32c_joined(static_cast<std::uint32_t>(integer(first, "first", 0, 0xffffffff)),
                         static_cast<std::uint32_t>(integer(second, "second", 0, 0xffffffff)),
                         static_cast<std::uint64_t>(integer(size, "second_size", 0)));
}

}  // namespace

void bind_crc32c(py::module_& m) {
    m.def("crc32c", &sum, py::arg("buffer"), py::arg("crc") = 0, doc);
    m.def("crc32c_joined", &joined, py::arg("first"), py::arg("second"), py::arg("second_size"),
          joined_doc);
}

}  // namespace windeck
