#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 256 << 10, GUARD = 4096 };

struct fiber {
    void *stack_pointer; /* while it is suspended */
    char *stack;
    void (*enter)(void *argument);
    void *argument;
    ucontext_t context;
};

static void *need(void *memory)
{
    if (memory == NULL || memory == MAP_FAILED) {
        fprintf(stderr, "emulation: no memory for a fiber\n");
        abort();
    }
    return memory;
}

#if defined(__x86_64__)
/* Saves the callee-saved registers and the stack pointer and loads the other's: some ten
 * instructions, where swapcontext makes two system calls. */
void fiber_swap_stacks(void **save, void *load);
__asm__(".text\n.globl fiber_swap_stacks\n.hidden fiber_swap_stacks\n"
        ".type fiber_swap_stacks,@function\n"
        "fiber_swap_stacks:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size fiber_swap_stacks,.-fiber_swap_stacks\n"
        ".hidden fiber_first\n.type fiber_first,@function\n"
        "fiber_first:\nmovq %r12, %rdi\ncallq *%rbx\nud2\n"
        ".size fiber_first,.-fiber_first\n");
void fiber_first(void);

static void prepare(fiber *one)
{
    void **top = (void **)(one->stack + GUARD + STACK);
    *--top = NULL; /* keeps the stack 16-byte aligned at the call */
    *--top = NULL;
    *--top = (void *)(uintptr_t)fiber_first; /* ret goes here */
    *--top = NULL;                           /* rbp */
    *--top = (void *)(uintptr_t)one->enter;  /* rbx */
    *--top = one->argument;                  /* r12 */
    *--top = NULL;
    *--top = NULL;
    *--top = NULL;
    one->stack_pointer = top;
}

void fiber_switch(fiber *from, fiber *to)
{
    fiber_swap_stacks(&from->stack_pointer, to->stack_pointer);
}
#else
static void first(unsigned high, unsigned low)
{
    fiber *one = (fiber *)(uintptr_t)(((uint64_t)high << 32) | low);
    one->enter(one->argument);
}

static void prepare(fiber *one)
{
    getcontext(&one->context);
    one->context.uc_stack.ss_sp = one->stack + GUARD;
    one->context.uc_stack.ss_size = STACK;
    uint64_t bits = (uintptr_t)one;
    makecontext(&one->context, (void (*)(void))first, 2, (unsigned)(bits >> 32), (unsigned)bits);
}

void fiber_switch(fiber *from, fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

fiber *fiber_create(void (*enter)(void *argument), void *argument)
{
    fiber *one = need(calloc(1, sizeof *one));
    one->stack = need(mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    mprotect(one->stack, GUARD, PROT_NONE);
    one->enter = enter;
    one->argument = argument;
    prepare(one);
    return one;
}

fiber *fiber_of_caller(void)
{
    return need(calloc(1, sizeof(fiber)));
}

void fiber_destroy(fiber *one)
{
    if (one != NULL && one->stack != NULL) {
        munmap(one->stack, GUARD + STACK);
    }
    free(one);
}
