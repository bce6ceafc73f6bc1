#!/bin/bash
# Prints Catch2's linker flags: none for version 2, which is a single header; -lCatch2 for version 3.
#
#   dev/find_catch2.sh "EXTRA_INCLUDE_FOLDERS"
for folder in ${1:-} /usr/include /usr/local/include; do
    for header in catch2/catch.hpp catch.hpp; do [ -e "$folder/$header" ] && exit 0; done
done
echo -lCatch2
