// Attests what was written down to somebody outside of the process, who gave a key for it before the program began.
#pragma once

#include "trace.h"

namespace paper {

// One more record; with the lock of the trace held.
void witness(const Record& record);

// The trace begins anew, or ends: what comes later is not attested any more.
void witness_interrupted();

}  // namespace paper
