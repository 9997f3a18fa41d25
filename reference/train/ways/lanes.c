#include "team.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"

typedef struct lane {
    ls_lanes *lanes;
    pthread_t thread;
    int index;
    int parts; /* posted in this run */
} lane;

struct ls_lanes {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a run began, a part was posted, a lane has ended its work */
    int count, started;     /* threads, lane 0 counted */
    ls_lane_work *work;
    void *context;
    long run; /* number of the run */
    int busy; /* lanes that still work, lane 0 not counted */
    bool closing;
    ls_status status; /* of the lane that failed first in this run */
    lane lane[];
};

static void end_work(ls_lanes *lanes, ls_status status)
{
    lanes->status = lanes->status == LS_OK ? status : lanes->status;
    pthread_cond_broadcast(&lanes->changed);
}

static void *run_lane(void *context)
{
    lane *own = context;
    ls_lanes *lanes = own->lanes;
    long done = 0;
    pthread_mutex_lock(&lanes->lock);
    for (;;) {
        while (!lanes->closing && lanes->run == done) {
            pthread_cond_wait(&lanes->changed, &lanes->lock);
        }
        if (lanes->closing) {
            break;
        }
        done = lanes->run;
        pthread_mutex_unlock(&lanes->lock);
        ls_status status = lanes->work(lanes->context, own->index);
        pthread_mutex_lock(&lanes->lock);
        lanes->busy--;
        end_work(lanes, status);
    }
    pthread_mutex_unlock(&lanes->lock);
    return NULL;
}

ls_status ls_lanes_open(int count, ls_lanes **out)
{
    LS_ASSERT(count >= 1);
    ls_lanes *lanes = ls_list_make(1, sizeof *lanes + (size_t)count * sizeof lanes->lane[0]);
    pthread_mutex_init(&lanes->lock, NULL);
    pthread_cond_init(&lanes->changed, NULL);
    lanes->count = count;
    for (lanes->started = 1; lanes->started < count; lanes->started++) {
        lane *next = &lanes->lane[lanes->started];
        *next = (lane){.lanes = lanes, .index = lanes->started};
        if (pthread_create(&next->thread, NULL, run_lane, next) != 0) {
            int made = lanes->started;
            ls_lanes_close(lanes);
            return ls_log_fail(LS_ERR_INFRA, "cannot start a thread for device %d", made);
        }
    }
    *out = lanes;
    return LS_OK;
}

void ls_lanes_close(ls_lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    pthread_mutex_lock(&lanes->lock);
    lanes->closing = true;
    pthread_cond_broadcast(&lanes->changed);
    pthread_mutex_unlock(&lanes->lock);
    for (int i = 1; i < lanes->started; i++) {
        pthread_join(lanes->lane[i].thread, NULL);
    }
    pthread_cond_destroy(&lanes->changed);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
}

ls_status ls_lanes_run(ls_lanes *lanes, ls_lane_work *work, void *context)
{
    pthread_mutex_lock(&lanes->lock);
    lanes->work = work;
    lanes->context = context;
    lanes->status = LS_OK;
    lanes->busy = lanes->count - 1;
    for (int i = 0; i < lanes->count; i++) {
        lanes->lane[i].parts = 0;
    }
    lanes->run++;
    pthread_cond_broadcast(&lanes->changed);
    pthread_mutex_unlock(&lanes->lock);
    ls_status status = work(context, 0);
    pthread_mutex_lock(&lanes->lock);
    end_work(lanes, status);
    while (lanes->busy > 0) {
        pthread_cond_wait(&lanes->changed, &lanes->lock);
    }
    status = lanes->status;
    pthread_mutex_unlock(&lanes->lock);
    return status;
}

void ls_lanes_post(ls_lanes *lanes, int lane)
{
    pthread_mutex_lock(&lanes->lock);
    lanes->lane[lane].parts++;
    pthread_cond_broadcast(&lanes->changed);
    pthread_mutex_unlock(&lanes->lock);
}

ls_status ls_lanes_await(ls_lanes *lanes, int lane, int parts)
{
    pthread_mutex_lock(&lanes->lock);
    while (lanes->lane[lane].parts < parts && lanes->status == LS_OK) {
        pthread_cond_wait(&lanes->changed, &lanes->lock);
    }
    ls_status status = lanes->lane[lane].parts < parts ? lanes->status : LS_OK;
    pthread_mutex_unlock(&lanes->lock);
    return status;
}
