#include "checkpoint.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"
#include "reference/train/ways/join.h"

#define LAST "last.safetensors"
#define BEST "best.safetensors"

typedef struct path {
    char text[sizeof((ls_options *)0)->save_dir + 32];
} path;

static bool keeps(const ls_trainer *trainer)
{
    return trainer->options.save_dir[0] != '\0';
}

static path path_in(const ls_trainer *trainer, const char *name)
{
    path in;
    ls_text_put(in.text, sizeof in.text, "%s/%s", trainer->options.save_dir, name);
    return in;
}

/* ---- before the first step ------------------------------------------------------------------- */

static ls_status check_file(const char *option, const char *name)
{
    struct stat found;
    LS_REFUSE_IF(stat(name, &found) == 0 && !S_ISREG(found.st_mode), "%s %s: it is %s", option,
                 name, S_ISDIR(found.st_mode) ? "a folder" : "not a regular file");
    int refused = ls_safetensors_try_create(name);
    bool lacks = refused == EROFS || refused == ENOSPC || refused == EDQUOT || refused == ENOMEM ||
                 refused == EMFILE || refused == ENFILE;
    return refused == 0
               ? LS_OK
               : ls_log_fail(lacks ? LS_ERR_INFRA : LS_ERR_USAGE, "%s %s: cannot write it: %s",
                             option, name, strerror(refused));
}

static ls_status check_files(const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    if (options->save[0] != '\0') {
        LS_TRY(check_file("--save", options->save));
    }
    if (!keeps(trainer)) {
        return LS_OK;
    }
    if (ls_path_make_folder(options->save_dir) != LS_OK) {
        return LS_ERR_USAGE;
    }
    path last = path_in(trainer, LAST), best = path_in(trainer, BEST);
    LS_TRY(check_file("--save-dir", last.text));
    return check_file("--save-dir", best.text);
}

ls_status ls_save_check(ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    int refusing = -1;
    if (options->save[0] == '\0' && !keeps(trainer)) {
        return LS_OK;
    }
    ls_status own = trainer->world.rank == 0 ? check_files(trainer) : LS_OK;
    bool works = own == LS_OK;
    LS_TRY(ls_join_all(trainer, "save", works, false, &refusing));
    if (works && refusing >= 0) {
        ls_log_error("%s %s: rank %d cannot write it", keeps(trainer) ? "--save-dir" : "--save",
                     keeps(trainer) ? options->save_dir : options->save, refusing);
    }
    return refusing < 0 ? LS_OK : works ? LS_ERR_USAGE : own;
}

ls_status ls_save_find(ls_trainer *trainer)
{
    ls_options *options = &trainer->options;
    if (strcmp(options->resume, "auto") != 0) {
        return LS_OK;
    }
    path last = path_in(trainer, LAST);
    bool found = access(last.text, F_OK) == 0;
    LS_REFUSE_IF(!found && errno != ENOENT, "--resume auto: %s: %s", last.text, strerror(errno));
    LS_REFUSE_IF(strlen(last.text) >= sizeof options->resume,
                 "--save-dir %s: too long for --resume auto", options->save_dir);
    bool taken = LS_PLANT(restart_forgets_checkpoint, found, false);
    ls_text_put(options->resume, sizeof options->resume, "%s", taken ? last.text : "");
    return ls_agree_on(trainer, "presence of --save-dir's last.safetensors (--resume auto)", found);
}

/* ---- last and best --------------------------------------------------------------------------- */

bool ls_save_due(const ls_trainer *trainer, int64_t step)
{
    const ls_options *options = &trainer->options;
    int64_t epochs = options->save_every > 0 ? options->save_every : 1;
    int64_t by_epochs = epochs * trainer->steps_per_epoch, by_steps = options->save_every_steps;
    return keeps(trainer) &&
           ((by_epochs > 0 && step % by_epochs == 0) || (by_steps > 0 && step % by_steps == 0));
}

void ls_save_note_score(ls_trainer *trainer, int64_t step, const ls_events_score *val)
{
    const ls_trainer_best *best = &trainer->best;
    /* shares of integers, compared exactly: no validation has 2^31 pictures */
    bool better = best->step == 0 || val->top1 * best->images > best->top1 * val->images;
    if (val->images > 0 && LS_PLANT(best_is_newest, better, true)) {
        trainer->best = (ls_trainer_best){step, val->images, val->top1};
    }
}

/* All ranks call it. */
static ls_status save_last(ls_trainer *trainer, int64_t step)
{
    path last = path_in(trainer, LAST);
    LS_TRY(ls_checkpoint_save(trainer, step, last.text));
    trainer->saved_step = step;
    return LS_OK;
}

static ls_status save_best(ls_trainer *trainer, int64_t step)
{
    path last = path_in(trainer, LAST), best = path_in(trainer, BEST);
    LS_TRY(ls_checkpoint_save(trainer, step, best.text));
    int linked = trainer->world.rank == 0 ? ls_file_second_name(best.text, last.text) : 0;
    int rank = -1;
    LS_TEXT(key, 48, "second name of step %lld", (long long)step);
    LS_TRY(ls_join_all(trainer, key, linked == 0, false, &rank));
    if (rank >= 0) { /* a file system without hard links: a second file */
        return save_last(trainer, step);
    }
    trainer->saved_step = step;
    return LS_OK;
}

ls_status ls_save_step(ls_trainer *trainer, int64_t step)
{
    if (keeps(trainer) && trainer->best.step == step) {
        return save_best(trainer, step);
    }
    return ls_save_due(trainer, step) ? save_last(trainer, step) : LS_OK;
}

ls_status ls_save_end(ls_trainer *trainer, int64_t step, int signal)
{
    const char *file = trainer->options.save;
    if (file[0] != '\0' && signal == 0) {
        LS_TRY(ls_checkpoint_save(trainer, step, file));
    }
    if (keeps(trainer) && trainer->saved_step != step) {
        LS_TRY(save_last(trainer, step));
    }
    if (signal == 0) {
        return LS_OK;
    }
    if (trainer->world.rank == 0) {
        path last = path_in(trainer, LAST);
        ls_log_note("stopped by signal %d (%s) after step %lld: --resume %s continues", signal,
                    strsignal(signal), (long long)step, last.text);
    }
    return LS_STOPPED;
}

/* ---- signals --------------------------------------------------------------------------------- */

static const int stopping[] = {SIGTERM, SIGUSR1};

ls_status ls_save_block_signals(const ls_trainer *trainer)
{
    sigset_t wanted;
    struct sigaction now;
    sigemptyset(&wanted);
    for (size_t i = 0; keeps(trainer) && i < sizeof stopping / sizeof *stopping; i++) {
        if (sigaction(stopping[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
            sigaddset(&wanted, stopping[i]); /* one that is ignored at start stays ignored */
        }
    }
    int failed = pthread_sigmask(SIG_BLOCK, &wanted, NULL);
    return failed == 0 ? LS_OK
                       : ls_log_fail(LS_ERR_INFRA, "cannot block signals: %s", strerror(failed));
}

/* 0: none. A signal that was ignored at start is not blocked, and does not count. */
static int pending_signal(void)
{
    sigset_t pending, blocked;
    if (sigpending(&pending) != 0 || pthread_sigmask(SIG_BLOCK, NULL, &blocked) != 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof stopping / sizeof *stopping; i++) {
        if (sigismember(&pending, stopping[i]) && sigismember(&blocked, stopping[i])) {
            return stopping[i];
        }
    }
    return 0;
}

ls_status ls_save_ask(ls_trainer *trainer, int64_t done, ls_save_stop *stop)
{
    enum { SIGNALS = 128 }; /* a request is STEP * SIGNALS + SIGNAL */
    if (!keeps(trainer) || stop->signal != 0) {
        return LS_OK;
    }
    int signal = pending_signal();
    int64_t asked = 0, order = 0;
    if (LS_PLANT(stop_without_agreement, trainer->store == NULL, true)) {
        asked = signal > 0 ? done * SIGNALS + signal : 0;
    } else {
        if (signal > 0 && !stop->asking) {
            stop->asking = true;
            LS_TRY(ls_store_add(trainer->store, "stop/requests", 1, &order));
        }
        LS_TRY(ls_store_add(trainer->store, "stop/at",
                            order == 1 ? (done + 2) * SIGNALS + signal : 0, &asked));
    }
    if (asked > 0 && asked / SIGNALS < stop->at) {
        stop->at = asked / SIGNALS;
        stop->signal = (int)(asked % SIGNALS);
    }
    return LS_OK;
}
