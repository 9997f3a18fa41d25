/* Gloo's transport/tcp/{context,pair}.h include gloo/common/memory.h, which Debian's libgloo-dev
 * lacks. This is as much of it as those declarations need, in the same layout; a Gloo that installs
 * its own is searched first (-idirafter). */
#ifndef LS_ABSENT_GLOO_MEMORY_H
#define LS_ABSENT_GLOO_MEMORY_H

#include <memory>

namespace gloo
{

template <typename T> class NonOwningPtr;

template <typename T> class WeakNonOwningPtr final
{
    std::weak_ptr<T> ptr_;
};

} // namespace gloo

#endif
