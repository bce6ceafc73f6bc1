#!/bin/bash
# Guess: for a CPU with AVX2, g++ copies a struct of 64 bytes, aligned to 64, by two loads and two stores of 32 bytes.
# Seen:  g++ 12 makes eight moves of 16 bytes, also with -march=znver3 or haswell. Whoever then reads the copy as
#        vectors of 32 bytes waits each time, as no such CPU forwards two stores to one load: kernels that keep 16
#        floats in a struct had a third to a half of their speed (norms, softmax). -mmove-max=256 -mstore-max=256 gives
#        the expected code; with AVX-512 it is right without them.
# Known: g++ 12.2 of Debian 12; the two options are new in g++ 12. Found in a profile, the arithmetic being vectorized.
. "$(dirname "$0")/lib.sh"
compiler=$(g++-12 -dumpfullversion 2>/dev/null) || fail "not run: needs g++-12 (apt-get install g++-12)"
[ "$(uname -m)" = x86_64 ] || fail "not run: needs x86-64"
echo "$name: g++ $compiler"
cat >copy.cpp <<'END'
struct alignas(64) Vector {
    float values[16];
};
void copy(Vector* to, const Vector* from) { *to = *from; }
END

all() {
    local flags
    for flags in -march=x86-64-v3 -march=znver3 -march=haswell "-march=x86-64-v3 -mmove-max=256 -mstore-max=256" \
        -march=x86-64-v4; do
        # shellcheck disable=SC2086
        g++-12 -O3 $flags -S -o copy.s copy.cpp
        echo "$flags: moves of 16 bytes $(grep -c 'mov.*xmm' copy.s), of 32 $(grep -c 'mov.*ymm' copy.s)," \
            "of 64 $(grep -c 'mov.*zmm' copy.s)"
    done
}
prints "-march=x86-64-v3: moves of 16 bytes 8, of 32 0, of 64 0
-march=znver3: moves of 16 bytes 8, of 32 0, of 64 0
-march=haswell: moves of 16 bytes 8, of 32 0, of 64 0
-march=x86-64-v3 -mmove-max=256 -mstore-max=256: moves of 16 bytes 0, of 32 4, of 64 0
-march=x86-64-v4: moves of 16 bytes 0, of 32 0, of 64 2" all
