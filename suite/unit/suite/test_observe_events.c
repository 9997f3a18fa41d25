/* Events read by their table, and calls that have what an earlier one has. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/event.h"
#include "suite/unit/run_suite.h"

static const ls_event *read_text(ls_event_store *store, ls_event_shape shape, const char *text)
{
    cJSON *object = cJSON_Parse(text);
    ck_assert_ptr_nonnull(object);
    const ls_event *out = ls_event_read(store, shape, object);
    cJSON_Delete(object);
    return out;
}

static const ls_event *add_like(ls_event_store *store, const ls_event *before, const char *text)
{
    cJSON *call = cJSON_Parse(text);
    ck_assert_ptr_nonnull(call);
    const ls_event *out = ls_event_read_call(store, before, call);
    cJSON_Delete(call);
    return out;
}

static const ls_event *add(ls_event_store *store, const char *text)
{
    return add_like(store, NULL, text);
}

/* Whether a call has the members of the text, and no others. */
static void assert_has(const ls_event *call, const char *text)
{
    ls_event_store *store = ls_event_store_make();
    const ls_event *given = add(store, text);
    ck_assert_msg(ls_event_equal(call, given) && ls_event_equal(given, call), "%s", text);
    ls_event_store_free(store);
}

TEST(an_event_has_what_its_table_has)
{
    ls_event_store *store = ls_event_store_make();
    const ls_event *e = read_text(
        store, LS_EVENT_optimizer,
        "{\"event\":\"optimizer\",\"optimizer\":3,\"class\":\"SGD\",\"class\":\"Adam\",\"of\":1,"
        "\"set_at\":null,\"groups\":[{\"lr\":0.5,\"nesterov\":true,\"params\":[\"a\",\"b\"],"
        "\"own\":{\"fix_lr\":7,\"limit\":2}},{\"lr\":null}],\"restored\":{\"lr\":[1,2],"
        "\"schedules\":1e300}}");
    ck_assert_int_eq(ls_event_int(e, optimizer, -1), 3);
    ck_assert_str_eq(ls_event_text(e, class, ""), "SGD"); /* of several the first */
    ck_assert(!ls_event_has(e, of));                      /* it is no member of an optimizer */
    ck_assert(ls_event_has(e, set_at) && !ls_event_has(e, rate_at));
    ck_assert_str_eq(ls_event_text(e, set_at, "none"), "none");
    const ls_event *groups = ls_event_list(e, groups), *group = ls_event_at(groups, 0);
    ck_assert_int_eq(ls_event_count(groups), 2);
    ck_assert_double_eq(ls_event_number(group, lr, NAN), 0.5);
    ck_assert_double_eq(ls_event_number(ls_event_at(groups, 1), lr, 4), 4);
    ck_assert_ptr_null(ls_event_at(groups, 2));
    ck_assert_ptr_null(ls_event_at(groups, -1));
    ck_assert(ls_event_bool(group, nesterov, false) && ls_event_bool(group, amsgrad, true));
    ck_assert_str_eq(ls_event_to_text(ls_event_last(ls_event_list(group, params)), ""), "b");
    const ls_event *own = ls_event_first(ls_event_object(group, own));
    ck_assert_str_eq(ls_event_key(own), "fix_lr");
    ck_assert_ptr_eq(ls_event_member(ls_event_object(group, own), limit), ls_event_after(own));
    ck_assert_double_eq(ls_event_to_number(own, 0), 7);
    ck_assert_ptr_null(ls_event_after(ls_event_after(own)));
    ck_assert_str_eq(ls_event_key(ls_event_first(group)), "lr");
    ck_assert_str_eq(ls_event_wrong(store),
                     "has \"schedules\" of restored that is not a whole number");
    ck_assert_int_eq(ls_event_int(ls_event_object(e, restored), schedules, -7), -7);
    ck_assert_int_eq(ls_event_shape_of(LS_EVENT_FILE_CALL, "optimizer"), LS_EVENT_none);
    ck_assert_int_eq(ls_event_shape_of(LS_EVENT_FILE_SUMS, "call"), LS_EVENT_sums_call);
    ck_assert_ptr_null(ls_event_first(NULL));
    ck_assert_int_eq(ls_event_count(NULL), 0);
    ls_event_store_free(store);
    ls_event_store_free(NULL);
}

static const char *const calls[] = {
    "{}",
    "{\"call\":\"zero_grad\",\"at\":\"train.py:7\",\"to_none\":true,\"optimizer\":null}",
    "{\"call\":\"forward\",\"model\":0,\"input\":\"5bc0098166d67e47\",\"left\":0,\"type\":\"f32\"}",
    "{\"call\":\"forward\",\"input\":\"5bc0098166d67e47\",\"left\":64}",
    "{\"call\":\"optimizer_step\",\"lr\":[0.1,0.2],\"set\":[{\"momentum\":0.9},{}]}",
    "{\"call\":\"clip\",\"models\":[0,1],\"norm\":1e300,\"limit\":0.5}",
};

TEST(calls_are_kept_as_they_are)
{
    enum { COUNT = sizeof calls / sizeof *calls };
    ls_event_store *store = ls_event_store_make();
    const ls_event *out[2][COUNT];
    for (int i = 0; i < 2 * COUNT; i++) {
        out[i / COUNT][i % COUNT] = add(store, calls[i % COUNT]);
    }
    for (int i = 0; i < 2 * COUNT; i++) { /* none has changed one that was there before */
        assert_has(out[i / COUNT][i % COUNT], calls[i % COUNT]);
        for (int k = 0; k < i % COUNT; k++) {
            ck_assert(!ls_event_equal(out[0][i % COUNT], out[0][k]));
        }
    }
    ck_assert_str_eq(ls_event_wrong(store), "");
    ls_event_store_free(store);
}

TEST(a_call_has_what_the_one_before_has)
{
    ls_event_store *store = ls_event_store_make();
    const char *const text =
        "{\"call\":\"clip\",\"norm\":0.5,\"at\":\"a.py:3\",\"models\":[0],\"group\":1}";
    const ls_event *first = add(store, text);
    ck_assert_ptr_eq(first, add_like(store, first, "{}"));
    const ls_event *second = add_like(store, first, "{\"norm\":null,\"models\":[0,1]}");
    assert_has(second, "{\"call\":\"clip\",\"norm\":null,\"at\":\"a.py:3\",\"models\":[0,1],"
                       "\"group\":1}");
    assert_has(add_like(store, second, "{\"norm\":7e9,\"limit\":2}"),
               "{\"call\":\"clip\",\"norm\":7e9,\"at\":\"a.py:3\",\"models\":[0,1],\"group\":1,"
               "\"limit\":2}");
    assert_has(first, text);
    ls_event_store_free(store);
}

/* What they have of an earlier one, where the same members are their own. */
TEST(calls_like_an_earlier_one_share_its_members)
{
    ls_event_store *store = ls_event_store_make();
    const ls_event *first = add(
        store,
        "{\"call\":\"forward\",\"input\":\"00000000000000aa\",\"sync\":true,\"at\":\"a.py:3\"}");
    const ls_event *second = add_like(store, first, "{\"input\":\"00000000000000bb\"}");
    const ls_event *third = add_like(store, first, "{\"input\":\"00000000000000cc\"}");
    const ls_event *other = add_like(store, first, "{\"sync\":false}");
    ck_assert_ptr_eq(ls_event_member(second, sync), ls_event_member(third, sync));
    ck_assert_ptr_eq(ls_event_member(second, at), ls_event_member(third, at));
    ck_assert_str_eq(ls_event_text(third, input, ""), "00000000000000cc");
    assert_has(other, "{\"call\":\"forward\",\"input\":\"00000000000000aa\",\"sync\":false,"
                      "\"at\":\"a.py:3\"}");
    ls_event_store_free(store);
}

TEST(long_texts_and_lists_are_kept)
{
    enum { LONG = 1 << 17 };
    ls_event_store *store = ls_event_store_make();
    char *text = ls_list_make(2 * LONG, 1);
    ls_text_put(text, LONG, "{\"names\":[\"first\"");
    for (int i = 0; i < 3000; i++) {
        ls_text_add(text, LONG, ",\"name%d\"", i);
    }
    ls_text_add(text, LONG, "],\"at\":\"");
    size_t at = strlen(text);
    memset(text + at, 'x', LONG / 2);
    memcpy(text + at + LONG / 2, "\"}", 3);
    const ls_event *event = read_text(store, LS_EVENT_hidden, text);
    ck_assert_int_eq(ls_event_count(ls_event_list(event, names)), 3001);
    ck_assert_str_eq(ls_event_to_text(ls_event_last(ls_event_list(event, names)), ""), "name2999");
    ck_assert_uint_eq(strlen(ls_event_text(event, at, "")), LONG / 2);
    free(text);
    ls_event_store_free(store);
}

TEST_MAIN("observe_events", .timeout_s = 60)
