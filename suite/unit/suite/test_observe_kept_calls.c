/* Calls kept in memory: each reads as the one that was given, and like ones share their members. */
#include <check.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/kept_calls.h"
#include "suite/unit/run_suite.h"

/* Whether both have the same members, in whatever order. */
static void assert_alike(const cJSON *kept, const char *text)
{
    cJSON *given = cJSON_Parse(text);
    ck_assert_ptr_nonnull(given);
    ck_assert_msg(cJSON_Compare(kept, given, true), "%s is not kept as it is", text);
    const cJSON *member = cJSON_IsObject(given) ? given->child : NULL;
    for (; member != NULL; member = member->next) {
        const cJSON *found = cJSON_GetObjectItemCaseSensitive(kept, member->string);
        ck_assert_msg(found != NULL && cJSON_Compare(found, member, true), "%s: %s", text,
                      member->string);
    }
    ck_assert_int_eq(cJSON_GetArraySize(kept), cJSON_GetArraySize(given));
    char *printed = cJSON_PrintUnformatted(kept); /* what a copy or a printer sees of it */
    cJSON *again = cJSON_Parse(printed);
    ck_assert(cJSON_Compare(again, given, true));
    cJSON_Delete(again);
    cJSON_free(printed);
    cJSON_Delete(given);
}

static const cJSON *add_like(ls_kept_calls *kept, const cJSON *before, const char *text)
{
    cJSON *call = cJSON_Parse(text);
    ck_assert_ptr_nonnull(call);
    const cJSON *out = ls_kept_calls_add(kept, before, call);
    cJSON_Delete(call);
    return out;
}

static const cJSON *add(ls_kept_calls *kept, const char *text)
{
    return add_like(kept, NULL, text);
}

static const char *const shapes[] = {
    "{}",
    "{\"call\":\"zero_grad\",\"at\":\"train.py:7\",\"to_none\":true,\"optimizer\":null}",
    "{\"call\":\"forward\",\"model\":0,\"input\":\"5bc0098166d67e47\",\"left\":0,\"type\":\"f32\"}",
    "{\"loss\":0.25}",
    "{\"input\":\"5bc0098166d67e47\",\"call\":\"forward\",\"loss\":-1e-300,\"left\":64}",
    "{\"lr\":[0.1,0.2],\"models\":[0,1],\"set\":[{\"momentum\":0.9},{}],\"deep\":{\"a\":[[1.5]]}}",
    "{\"input\":\"5bc0098166d67e4\",\"other\":\"5BC0098166D67E47\",\"none\":\"\"}",
    "{\"scale\":1e300,\"next\":65536,\"growth\":1999,\"small\":63,\"minus\":-63,\"half\":0.5}",
    "[1,2.5,\"word\"]",
    "7",
};

TEST(calls_are_kept_as_they_are)
{
    ls_kept_calls *kept = ls_kept_calls_make();
    const cJSON *out[2][sizeof shapes / sizeof *shapes];
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            out[round][i] = add(kept, shapes[i]);
        }
    }
    for (int round = 0; round < 2; round++) { /* none has changed one that was there before */
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            assert_alike(out[round][i], shapes[i]);
        }
    }
    assert_alike(add(kept, "{\"a\":1,\"b\":2.5,\"b\":3,\"a\":1.5}"), "{\"a\":1,\"b\":2.5}");
    ls_kept_calls_free(kept);
    ls_kept_calls_free(NULL);
}

TEST(alike_members_are_kept_once)
{
    ls_kept_calls *kept = ls_kept_calls_make();
    const char *const plain = "{\"call\":\"backward\",\"at\":\"train.py:9\",\"sync\":true}";
    ck_assert_ptr_eq(add(kept, plain), add(kept, plain));
    const cJSON *a =
        add(kept, "{\"call\":\"forward\",\"input\":\"00000000000000aa\",\"sync\":true}");
    const cJSON *b =
        add(kept, "{\"call\":\"forward\",\"input\":\"00000000000000bb\",\"sync\":true}");
    ck_assert_ptr_ne(a, b);
    ck_assert_ptr_eq(cJSON_GetObjectItemCaseSensitive(a, "sync"),
                     cJSON_GetObjectItemCaseSensitive(b, "sync"));
    ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(a, "input")->valuestring, "00000000000000aa");
    ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(b, "input")->valuestring, "00000000000000bb");
    /* The same numbers and words under other names, in other lists or of other types are not alike.
     */
    static const char *const unlike[] = {
        "{\"a\":1,\"b\":2}",     "{\"a\":1,\"c\":2}",    "{\"a\":2,\"b\":1}",   "{\"a\":1}",
        "{\"a\":true,\"b\":2}",  "{\"a\":[1,2]}",        "{\"a\":[1],\"b\":2}", "{\"a\":[[1],2]}",
        "{\"a\":\"1\",\"b\":2}", "{\"a\":null,\"b\":2}", "{\"a\":{\"b\":2}}",   "{\"a\":[1,2,3]}",
    };
    for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++) {
        assert_alike(add(kept, unlike[i]), unlike[i]);
        for (size_t j = 0; j < i; j++) {
            ck_assert_ptr_ne(add(kept, unlike[i]), add(kept, unlike[j]));
        }
    }
    ls_kept_calls_free(kept);
}

TEST(a_call_has_what_the_one_before_has)
{
    ls_kept_calls *kept = ls_kept_calls_make();
    const cJSON *first =
        add(kept, "{\"call\":\"clip\",\"norm\":0.5,\"at\":\"a.py:3\",\"lr\":[0.1],\"group\":1}");
    ck_assert_ptr_ne(first, add_like(kept, first, "{}")); /* its own numbers once more */
    assert_alike(add_like(kept, first, "{}"),
                 "{\"call\":\"clip\",\"norm\":0.5,\"at\":\"a.py:3\",\"lr\":[0.1],\"group\":1}");
    const cJSON *second = add_like(kept, first, "{\"norm\":null,\"lr\":[0.1,1],\"group\":\"x\"}");
    assert_alike(second, "{\"call\":\"clip\",\"norm\":null,\"at\":\"a.py:3\",\"lr\":[0.1,1],"
                         "\"group\":\"x\"}");
    assert_alike(add_like(kept, second, "{\"norm\":7e9,\"more\":true}"),
                 "{\"call\":\"clip\",\"norm\":7e9,\"at\":\"a.py:3\",\"lr\":[0.1,1],"
                 "\"group\":\"x\",\"more\":true}");
    assert_alike(first, "{\"call\":\"clip\",\"norm\":0.5,\"at\":\"a.py:3\",\"lr\":[0.1],"
                        "\"group\":1}");
    const cJSON *plain = add(kept, "{\"call\":\"zero_grad\"}");
    ck_assert_ptr_eq(plain, add_like(kept, plain, "{}"));
    assert_alike(add_like(kept, add(kept, "{}"), "{}"), "{}");
    ls_kept_calls_free(kept);
}

/* One of 4,096 calls of a kind: they differ in types, in which members there are, in the length of
 * a list, in numbers or in a text. Enough of each that some meet in a place of the table. */
static void write_call(int kind, int number, char *text, size_t bytes)
{
    ls_text_put(text, bytes, kind == 2 ? "{\"list\":[1" : "{\"call\":\"forward\"");
    for (int bit = 0; bit < 12; bit++) {
        bool set = (number >> bit & 1) != 0;
        if (kind == 0) {
            ls_text_add(text, bytes, ",\"t%d\":%s", bit, set ? "true" : "false");
        } else if (kind == 1 && !set) { /* the longest first */
            ls_text_add(text, bytes, ",\"m%d\":1", bit);
        } else if (kind == 2 && set) {
            ls_text_add(text, bytes, ",%d", bit);
        }
    }
    if (kind == 3) {
        ls_text_add(text, bytes, ",\"a\":%d,\"b\":%d", number % 64, number / 64);
    } else if (kind == 4) {
        ls_text_add(text, bytes, ",\"at\":\"train.py:%d\"", number);
    }
    ls_text_add(text, bytes, kind == 2 ? "]}" : "}");
}

LOOP_TEST(many_unlike_calls_are_found_again, 5)
{
    enum { COUNT = 4096 };
    ls_kept_calls *kept = ls_kept_calls_make();
    const cJSON **first = ls_list_make(COUNT, sizeof(const cJSON *));
    for (int i = 0; i < 2 * COUNT; i++) {
        char text[400];
        write_call(_i, i % COUNT, text, sizeof text);
        const cJSON *out = add(kept, text);
        assert_alike(out, text);
        if (i < COUNT) {
            first[i] = out;
        } else {
            ck_assert_ptr_eq(first[i - COUNT], out);
        }
    }
    free(first);
    ls_kept_calls_free(kept);
}

TEST(many_names_and_long_texts_are_kept)
{
    ls_kept_calls *kept = ls_kept_calls_make();
    for (int i = 0; i < 400; i++) {
        char name[40], *text = ls_list_make(1 << 18, 1);
        ls_text_put(name, sizeof name, "name%d", i);
        ls_text_put(text, 1 << 18, "{\"%s\":\"", name);
        size_t at = strlen(text), length = i % 100 == 0 ? 1 << 17 : 3;
        memset(text + at, 'x', length);
        memcpy(text + at + length, "\"}", 3);
        const cJSON *out = add(kept, text);
        assert_alike(out, text);
        ck_assert_ptr_eq(out, add(kept, text));
        free(text);
    }
    ls_kept_calls_free(kept);
}

TEST_MAIN("observe_kept_calls", .timeout_s = 60)
