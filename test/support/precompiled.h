// As base/precompiled.h, for tests.
#include "base/precompiled.h"
#include "test/support/catch.h"
