/* A thread of control with its own stack, switched explicitly. */
#ifndef LS_EMULATE_FIBER_H
#define LS_EMULATE_FIBER_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fiber fiber;

/* Starts in enter(argument), which must never return, at the first switch to it. */
fiber *fiber_create(void (*enter)(void *argument), void *argument);
/* The caller's own fiber, to switch back to. */
fiber *fiber_of_caller(void);
void fiber_destroy(fiber *one);
void fiber_switch(fiber *from, fiber *to);

#ifdef __cplusplus
}
#endif
#endif
