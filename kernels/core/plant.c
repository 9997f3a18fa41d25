#include "plant.h"

#include <stdlib.h> /* in the normal build, too: a file of nothing is not C */

#ifdef LS_PLANTS

#include <stdbool.h>
#include <string.h>

#include "digest.h"

uint64_t ls_plant_active = 0;
int64_t ls_plant_now = 0;

/* The fault that LS_PLANT asks for. */
static struct wish {
    uint64_t number;
    int64_t step; /* -1: any */
} wish = {0, -1};

static uint64_t number_of(const char *name, size_t length)
{
    return ls_digest_update(LS_DIGEST_START, name, length) | 1u;
}

uint64_t ls_plant_number(const char *name)
{
    return number_of(name, strlen(name));
}

void ls_plant_step(int64_t step)
{
    ls_plant_now = step;
    ls_plant_active = wish.step < 0 || wish.step == step ? wish.number : 0;
}

/* RANK is torchrun's; a process without it is rank 0. */
static bool is_for_us(const char *text)
{
    const char *colon = strchr(text, ':'), *rank = getenv("RANK");
    return colon == NULL || atoll(colon + 1) == (rank == NULL ? 0 : atoll(rank));
}

/* Runs before main, and in each engine when it is loaded. */
__attribute__((constructor)) static void read_wish(void)
{
    const char *text = getenv("LS_PLANT");
    if (text == NULL || text[0] == '\0' || !is_for_us(text)) {
        return;
    }
    const char *at = strchr(text, '@');
    wish.number = number_of(text, strcspn(text, "@:"));
    wish.step = at == NULL ? -1 : atoll(at + 1);
    /* a fault for one step only is off until that step */
    if (wish.step < 0) {
        ls_plant_active = wish.number;
    }
}

#endif
