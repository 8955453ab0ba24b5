// What autograd's own threads still have to do.
#pragma once

namespace paper {

// A backward has begun in this process; called by whoever follows autograd.
void backward_has_run();

}  // namespace paper
