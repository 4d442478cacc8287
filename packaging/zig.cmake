# CMake toolchain: Zig's clang, which links libc++ statically and can target an old glibc.
# From the environment: ZIG, the program; ZIG_TARGET, as x86_64-linux-gnu.2.17.
string(REGEX MATCH "^[^-]+" machine "$ENV{ZIG_TARGET}")
if(NOT CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL machine)
  set(CMAKE_SYSTEM_NAME Linux)
  set(CMAKE_SYSTEM_PROCESSOR ${machine})
endif()
set(CMAKE_CXX_COMPILER "$ENV{ZIG}" c++ -target "$ENV{ZIG_TARGET}")
# The archiver is a command of the same program, which CMAKE_AR cannot name.
set(CMAKE_CXX_ARCHIVE_CREATE "\"$ENV{ZIG}\" ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "\"$ENV{ZIG}\" ranlib <TARGET>")
# GCC has no frame pointers either.
set(CMAKE_CXX_FLAGS_INIT -fomit-frame-pointer)
# glibc ends a thread through libgcc_s: exceptions are unwound by it as well, which has to be found
# before Zig's own unwinder, a static library.
find_file(LIBGCC_S libgcc_s.so.1 PATHS /lib/${machine}-linux-gnu /usr/${machine}-linux-gnu/lib
          /lib64 /usr/lib64 /usr/lib NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s ${LIBGCC_S}")
# pybind11 would choose link-time optimisation of the bindings, which takes minutes for each Python.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
