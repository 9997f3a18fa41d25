/* NVTX is a header-only library that looks for a profiler at its first call and does nothing
 * without one. */
#include "backend.h"

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define LS_NVTX_THERE
#endif
#endif

void ls_nvtx_push(ls_backend *backend, const char *name)
{
    (void)backend;
#ifdef LS_NVTX_THERE
    (void)nvtxRangePushA(name);
#else
    (void)name;
#endif
}

void ls_nvtx_pop(ls_backend *backend)
{
    (void)backend;
#ifdef LS_NVTX_THERE
    (void)nvtxRangePop();
#endif
}
