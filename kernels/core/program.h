/* A program's main. What libraries do where they find no memory or no thread is theirs: libgomp
 * calls exit(1), cJSON leaves members out, oneDNN writes to where it has nothing. None of that may
 * look like an answer about what the program runs. */
#ifndef LS_CORE_PROGRAM_H
#define LS_CORE_PROGRAM_H

#define LS_VERSION "0.2.0" /* of all programs, and in their reports */

/* Calls run(argc, argv) and exits with its code. Meanwhile the program ends with LS_ERR_INFRA, with
 * a line, where a library ends it by exit(1), where cJSON finds no memory, and where it crashes
 * (SEGV, BUS, ABRT, FPE) while not even a thread's stack of memory is left. */
_Noreturn void ls_program_main(int (*run)(int argc, char **argv), int argc, char **argv);

#endif
