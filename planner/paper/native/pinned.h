// Memory of the host that is page-locked.
#pragma once

namespace paper {

bool is_pinned(const void* address);

}  // namespace paper
