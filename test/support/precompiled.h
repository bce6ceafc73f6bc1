// As base/precompiled.h, for tests.
#include <fstream>
#include <random>

#include "base/precompiled.h"
#include "test/support/catch.h"
