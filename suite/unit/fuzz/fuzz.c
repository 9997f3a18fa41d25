/* `make fuzz`: mutated input for every reader of what others wrote, under the sanitizers. The same
 * seed and number give the same input again, on any machine.
 *
 *   build/fuzz/unit/fuzz SECONDS [SEED]
 *
 * Each reader runs in a child of its own. One that crashes, or takes more than 10 s for one input,
 * leaves that input in a file that is named, and the exit code is 1. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "harness/hosts/remote.h"
#include "harness/hosts/outcome.h"
#include "harness/run/record.h"
#include "harness/store/gate.h"
#include "harness/store/store_server.h"
#include "harness/store/store_wire.h"
#include "kernels/core/text.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "reference/data/jpeg.h"
#include "reference/oracle/dumpfile.h"
#include "reference/files/safetensors.h"
#include "suite/run/select.h"

enum { INPUT_BYTES_MAX = 1 << 16, SEEDS_MAX = 8, INPUT_LIMIT_S = 10 };

typedef struct bytes {
    size_t count;
    unsigned char at[INPUT_BYTES_MAX + 1]; /* a 0 behind the last */
} bytes;

/* Seen by parent and child. */
typedef struct shared {
    int64_t count;
    bytes input;
} shared;

typedef struct fuzz {
    char folder[64];
    uint64_t random;
    int seeds;
    bytes *seed; /* [SEEDS_MAX] */
    ls_store_server *server;
    unsigned char key[LS_SHA256_BYTES]; /* of the server's job */
} fuzz;

/* ---- mutation ------------------------------------------------------------------------------- */

/* xorshift64* (Vigna 2016, "An experimental exploration of Marsaglia's xorshift generators") */
static uint64_t draw(fuzz *f)
{
    f->random ^= f->random >> 12;
    f->random ^= f->random << 25;
    f->random ^= f->random >> 27;
    return f->random * UINT64_C(2685821657736338717);
}

static size_t below(fuzz *f, size_t limit)
{
    return limit == 0 ? 0 : (size_t)(draw(f) >> 16) % limit;
}

static void replace(bytes *b, size_t from, size_t taken, const void *text, size_t count)
{
    if (from > b->count || taken > b->count - from || b->count - taken + count > INPUT_BYTES_MAX) {
        return;
    }
    unsigned char copy[64];
    LS_ASSERT(count <= sizeof copy);
    memcpy(copy, text, count);
    memmove(b->at + from + count, b->at + from + taken, b->count - from - taken);
    memcpy(b->at + from, copy, count);
    b->count += count - taken;
}

static void mutate_once(fuzz *f, bytes *b)
{
    static const char *const words[] = {"-1",
                                        "0",
                                        "1e999",
                                        "18446744073709551615",
                                        "4294967296",
                                        "9223372036854775807",
                                        "null",
                                        "\"",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\\u0000",
                                        "\n",
                                        "#",
                                        "*",
                                        "\xff\xff\xff\xff",
                                        "\x80",
                                        "F32",
                                        "BF16",
                                        "slots=",
                                        "-nan",
                                        "1e-400"};
    size_t at = below(f, b->count + 1), word = below(f, sizeof words / sizeof *words);
    size_t rest = b->count - at, some = below(f, rest < 32 ? rest + 1 : 32);
    switch (below(f, 10)) {
    case 0:
        b->at[at] ^= (unsigned char)(1u << below(f, 8));
        break;
    case 1:
        b->at[at] = (unsigned char)draw(f);
        break;
    case 2:
        replace(b, at, some, "", 0);
        break;
    case 3:
        replace(b, at, 0, b->at + at, some);
        break;
    case 4:
        replace(b, at, 0, words[word], strlen(words[word]));
        break;
    case 5:
        replace(b, at, some, words[word], strlen(words[word]));
        break;
    case 6:
        b->count = below(f, 4) == 0 ? at : b->count;
        break;
    case 7: { /* a digit of a number that may be a length */
        size_t digit = at + strcspn((char *)b->at + at, "0123456789");
        if (digit < b->count) {
            b->at[digit] = (unsigned char)('0' + below(f, 10));
        }
        break;
    }
    case 8: /* longer than anybody has thought of */
        for (size_t times = below(f, 80); times > 0; times--) {
            replace(b, at, 0, b->at + at, some);
        }
        break;
    default: /* a piece of another seed */
        replace(b, at, 0, f->seed[below(f, (size_t)f->seeds)].at + below(f, 64), some);
    }
    b->at[b->count] = '\0';
}

static void make_input(fuzz *f, bytes *b)
{
    const bytes *seed = &f->seed[below(f, (size_t)f->seeds)];
    memcpy(b->at, seed->at, seed->count + 1);
    b->count = seed->count;
    for (size_t left = 1 + below(f, 6); left > 0; left--) {
        mutate_once(f, b);
    }
}

/* ---- files ---------------------------------------------------------------------------------- */

static void put_file(const fuzz *f, const char *name, const void *data, size_t count)
{
    char path[128];
    ls_text_put(path, sizeof path, "%s/%s", f->folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    LS_ASSERT(fd >= 0 && write(fd, data, count) == (ssize_t)count);
    close(fd);
}

static void add_seed(fuzz *f, const void *data, size_t count)
{
    LS_ASSERT(f->seeds < SEEDS_MAX && count <= INPUT_BYTES_MAX);
    bytes *seed = &f->seed[f->seeds++];
    memcpy(seed->at, data, count);
    seed->at[count] = '\0';
    seed->count = count;
}

static void add_seed_file(fuzz *f, const char *name)
{
    char path[128];
    static unsigned char data[INPUT_BYTES_MAX];
    ls_text_put(path, sizeof path, "%s/%s", f->folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : read(fd, data, sizeof data);
    LS_ASSERT(count > 0);
    close(fd);
    add_seed(f, data, (size_t)count);
}

static void add_seed_text(fuzz *f, const char *text)
{
    add_seed(f, text, strlen(text));
}

/* ---- readers -------------------------------------------------------------------------------- */

static void seed_safetensors(fuzz *f)
{
    char path[128];
    float values[12] = {1, 2, 3};
    int64_t classes[3] = {0, 1, 2};
    ls_text_put(path, sizeof path, "%s/seed", f->folder);
    for (int kind = 0; kind < 2; kind++) {
        ls_safetensors_writer *writer = NULL;
        LS_ASSERT(ls_safetensors_create(path, &writer) == LS_OK);
        ls_safetensors_metadata(writer, "step", "%d", 3);
        ls_shape shape = {.rank = 2, .dim = {3, 4}}, flat = {.rank = 1, .dim = {3}};
        ls_safetensors_add(writer, "param/conv1.weight", LS_F32, &shape, values);
        if (kind == 1) {
            ls_safetensors_add(writer, "target", LS_I64, &flat, classes);
        }
        LS_ASSERT(ls_safetensors_finish(writer) == LS_OK);
        add_seed_file(f, "seed");
    }
}

static void read_safetensors(fuzz *f, const bytes *b)
{
    char path[128];
    put_file(f, "file", b->at, b->count);
    ls_text_put(path, sizeof path, "%s/file", f->folder);
    ls_safetensors *file = NULL;
    volatile unsigned sum = 0;
    if (ls_safetensors_open(path, &file) == LS_OK) {
        for (int i = 0; i < ls_safetensors_count(file); i++) {
            const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
            for (int64_t k = 0; k < entry->bytes; k++) {
                sum += ((const unsigned char *)entry->data)[k];
            }
        }
        (void)ls_safetensors_metadata_of(file, "step", "");
        ls_safetensors_close(file);
    }
    ls_dumpfile *dump = NULL;
    if (ls_dumpfile_open(path, &dump) == LS_OK) {
        const ls_dumpfile_entry *entry = ls_dumpfile_find(dump, "param/conv1.weight");
        if (entry != NULL && entry->count <= 1024) {
            double value[1024];
            ls_dumpfile_read(entry, value);
        }
        ls_dumpfile_close(dump);
    }
}

static void seed_jpeg(fuzz *f)
{
    char path[128];
    unsigned char rgb[17 * 13 * 3];
    for (size_t i = 0; i < sizeof rgb; i++) {
        rgb[i] = (unsigned char)draw(f);
    }
    ls_text_put(path, sizeof path, "%s/seed", f->folder);
    LS_ASSERT(ls_jpeg_write(path, rgb, 17, 13, 80) == LS_OK);
    add_seed_file(f, "seed");
    LS_ASSERT(ls_jpeg_write(path, rgb, 8, 8, 20) == LS_OK);
    add_seed_file(f, "seed");
}

static void read_jpeg(fuzz *f, const bytes *b)
{
    char path[128], why[300];
    int width, height;
    const uint8_t *rgb = NULL;
    volatile unsigned sum = 0;
    ls_jpeg *jpeg = NULL;
    put_file(f, "file", b->at, b->count);
    ls_text_put(path, sizeof path, "%s/file", f->folder);
    LS_ASSERT(ls_jpeg_create(&jpeg) == LS_OK);
    (void)ls_jpeg_check(jpeg, path, why, sizeof why);
    if (ls_jpeg_open(jpeg, path, &width, &height, why, sizeof why) == LS_OK &&
        (int64_t)width * height < 1 << 22 &&
        ls_jpeg_decode(jpeg, 1 << below(f, 4), &rgb, &width, &height, why, sizeof why) == LS_OK) {
        for (int64_t i = 0; i < (int64_t)width * height * 3; i++) {
            sum += rgb[i];
        }
    }
    ls_jpeg_destroy(jpeg);
}

static const char job_json[] =
    "{\"schema\":1,\"id\":\"a\",\"command\":[\"x\"],\"environment\":{\"WORLD_SIZE\":\"2\"},"
    "\"facts\":{\"role\":\"evidence\",\"world\":2},\"outcome\":{\"state\":\"done\",\"first_rank\":-"
    "1,"
    "\"code\":0,\"signal\":0,\"seconds\":1.5,\"ranks\":[{\"rank\":0,\"code\":0,\"signal\":0,"
    "\"seconds\":1,\"user_s\":1,\"system_s\":0,\"rss_bytes_max\":5},{\"rank\":1,\"code\":0}]}}";
static const char events[] =
    "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{\"arch\":\"resnet8\"}}\n"
    "{\"event\":\"buckets\",\"iteration\":1,\"buckets\":[{\"bytes\":4,\"names\":[\"a\"]}]}\n"
    "{\"event\":\"step\",\"step\":1,\"loss\":2.5,\"loss_bits\":\"0x40200000\",\"loss_scale\":1,"
    "\"loss_scale_next\":1,\"skipped\":false,\"lr\":0.1,\"images\":4,\"digest\":{\"param\":"
    "\"0123456789abcdef\"},\"ms\":{\"total\":5}}\n{\"event\":\"end\",\"step\":1,\"code\":0}\n";

static void seed_record(fuzz *f)
{
    add_seed_text(f, job_json);
    add_seed_text(f, events);
}

static void read_record(fuzz *f, const bytes *b)
{
    bool is_job = b->at[0] == '{' && memmem(b->at, b->count, "\"event\"", 7) == NULL;
    put_file(f, "job.json", is_job ? b->at : (const void *)job_json,
             is_job ? b->count : sizeof job_json - 1);
    put_file(f, "rank0.jsonl", is_job ? (const void *)events : b->at,
             is_job ? sizeof events - 1 : b->count);
    ls_record record;
    if (ls_record_read(f->folder, LS_RECORD_LENIENT, &record) == LS_OK) {
        ls_record_free(&record);
    }
    if (ls_record_read(f->folder, LS_RECORD_STRICT, &record) == LS_OK) {
        for (int k = 0; k < record.world && k < 2; k++) {
            (void)ls_record_find_step(&record.rank[k], 1);
        }
        ls_record_free(&record);
    }
}

static void seed_outcome(fuzz *f)
{
    add_seed_text(f, strstr(job_json, "{\"state\""));
    add_seed_text(f, "{\"schema\":1,\"directory\":\"/tmp\",\"environment\":{\"FUZZ_A\":\"b\"}}");
}

static void read_outcome(fuzz *f, const bytes *b)
{
    (void)f;
    cJSON *object = cJSON_Parse((const char *)b->at);
    ls_outcome outcome;
    if (object != NULL && ls_outcome_read(object, 0, 2, &outcome)) {
        ls_outcome_free(&outcome);
    }
    cJSON_Delete(object);
    (void)ls_remote_session_apply((const char *)b->at);
}

static void seed_hosts(fuzz *f)
{
    add_seed_text(f, "a slots=4 # comment\n\nuser@b.example slots=4\r\n10.0.0.1\n");
    add_seed_text(f, "a,b,user@c,fe80::1%eth0");
}

static void read_hosts(fuzz *f, const bytes *b)
{
    (void)f;
    ls_hosts hosts;
    int ranks;
    char text[40];
    const char *input = (const char *)b->at;
    if (ls_hosts_parse_text("file", input, &hosts) == LS_OK) {
        (void)ls_hosts_ranks(&hosts, 0, &ranks);
        ls_hosts_describe(&hosts, text, sizeof text);
    }
    (void)ls_hosts_parse_list(input, &hosts);
}

static void seed_lists(fuzz *f)
{
    add_seed_text(f, "# title\ngradients.o?.w*  a reason\n*.timed.*\n\nscaler.trace.o1 # why\n");
}

static void read_lists(fuzz *f, const bytes *b)
{
    char path[128];
    ls_select_list list = {0, 0, NULL};
    put_file(f, "file", b->at, b->count);
    ls_text_put(path, sizeof path, "%s/file", f->folder);
    if (ls_select_load(path, &list) == LS_OK) {
        (void)ls_select_find(&list, "gradients.o1.w2.b1mb");
    }
    ls_select_free(&list);
}

static size_t put_request(unsigned char *at, ls_store_verb verb, const char *key, const void *value,
                          size_t value_bytes, int64_t number)
{
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = verb,
                              .key_bytes = (uint32_t)strlen(key),
                              .value_bytes = (uint32_t)value_bytes,
                              .number = number};
    ls_store_wire_put(&header, at);
    memcpy(at + LS_STORE_HEADER_BYTES, key, header.key_bytes);
    memcpy(at + LS_STORE_HEADER_BYTES + header.key_bytes, value, value_bytes);
    return LS_STORE_HEADER_BYTES + header.key_bytes + value_bytes;
}

static void seed_store(fuzz *f)
{
    unsigned char data[1024];
    size_t used = put_request(data, LS_STORE_SET, "key/0", "value", 5, 0);
    used += put_request(data + used, LS_STORE_GET, "key/0", "", 0, 1);
    used += put_request(data + used, LS_STORE_WAIT, "absent", "", 0, 1);
    used += put_request(data + used, LS_STORE_ADD, "count", "", 0, 5);
    used += put_request(data + used, LS_STORE_WHO_LEFT, "", "", 0, 0);
    used += put_request(data + used, LS_STORE_BYE, "", "", 0, 0);
    add_seed(f, data, used);
    ls_store_options options = {
        .rank = 0, .world = 2, .address = "127.0.0.1", .port = 0, .run_id = "id", .timeout_s = 5};
    ls_store_server_key(&options, f->key);
    LS_ASSERT(ls_store_server_start(&options, &f->server) == LS_OK);
}

/* Everything is sent in one piece or two; whatever the server answers is read until it has nothing
 * more to say at once. Every connection must at least be greeted or answered: the server lives. */
static void read_store(fuzz *f, const bytes *b)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)ls_store_server_port(f->server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char answer[4096];
    int fd = -1;
    if (below(f, 4) == 0) { /* the gate; else the server behind it */
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        LS_ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    } else {
        ls_gate_claim claim = {
            .rank = (int)below(f, 3), .world = 2, .further = below(f, 8) > 0, .timeout_ms = 50};
        LS_ASSERT(ls_gate_enter((struct sockaddr *)&at, sizeof at, f->key, &claim,
                                ls_clock_after(INPUT_LIMIT_S / 2), &fd, answer,
                                sizeof answer) == LS_GATE_IN);
    }
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    LS_ASSERT(poll(&polled, 1, 1000 * INPUT_LIMIT_S / 2) == 1);
    size_t part = below(f, b->count + 1);
    (void)send(fd, b->at, part, MSG_NOSIGNAL);
    (void)send(fd, b->at + part, b->count - part, MSG_NOSIGNAL);
    while (poll(&polled, 1, 2) == 1 && recv(fd, answer, sizeof answer, 0) > 0) {
    }
    struct linger reset = {.l_onoff = 1}; /* no port stays behind in TIME_WAIT */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

typedef struct reader {
    const char *name;
    void (*seed)(fuzz *);
    void (*read)(fuzz *, const bytes *);
} reader;

static const reader readers[] = {
    {"safetensors", seed_safetensors, read_safetensors},
    {"jpeg", seed_jpeg, read_jpeg},
    {"records", seed_record, read_record},
    {"reports and orders", seed_outcome, read_outcome},
    {"host files", seed_hosts, read_hosts},
    {"lists", seed_lists, read_lists},
    {"store", seed_store, read_store},
};

enum { READERS = sizeof readers / sizeof *readers };

/* ---- running -------------------------------------------------------------------------------- */

/* The child: its messages go to a file that is kept short. */
static int run_reader(const reader *r, fuzz *f, int64_t until_ns, shared *status)
{
    char said[128];
    ls_text_put(said, sizeof said, "%s/said", f->folder);
    int fd = open(said, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    LS_ASSERT(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    f->seed = calloc(SEEDS_MAX, sizeof *f->seed);
    LS_ASSERT(f->seed != NULL);
    r->seed(f);
    for (; ls_clock_ns() < until_ns; status->count++) {
        if (status->count % 256 == 0) {
            (void)!ftruncate(STDERR_FILENO, 0);
        }
        make_input(f, &status->input);
        alarm(INPUT_LIMIT_S);
        r->read(f, &status->input);
    }
    alarm(0);
    free(f->seed);
    if (f->server != NULL) {
        ls_store_server_stop(f->server, 0);
    }
    return 0;
}

static bool fuzz_reader(const reader *r, uint64_t seed, double seconds)
{
    fuzz f = {.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1};
    char path[160];
    /* in memory where there is such a folder: inputs are written by the thousand */
    ls_text_put(f.folder, sizeof f.folder, "%s/ls_fuzz_XXXXXX",
                access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp");
    LS_ASSERT(mkdtemp(f.folder) != NULL);
    shared *status =
        mmap(NULL, sizeof *status, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    LS_ASSERT(status != MAP_FAILED);
    int state = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        exit(run_reader(r, &f, ls_clock_ns() + (int64_t)(seconds * 1e9), status));
    }
    LS_ASSERT(waitpid(pid, &state, 0) == pid);
    int64_t count = status->count;
    bool good = WIFEXITED(state) && WEXITSTATUS(state) == 0 && count > 0;
    if (!good) {
        put_file(&f, "input", status->input.at, status->input.count);
    }
    munmap(status, sizeof *status);
    printf("%s - %s: %" PRId64 " inputs, seed %" PRIu64 "\n", good ? "ok" : "not ok", r->name,
           count, seed);
    if (!good) {
        ls_text_put(path, sizeof path, "%s/said", f.folder);
        char *said = ls_text_read(path);
        size_t length = said == NULL ? 0 : strlen(said);
        printf("%s %d; the input is %s/input\n%s\n", WIFSIGNALED(state) ? "signal" : "exit code",
               WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state), f.folder,
               said == NULL ? "" : said + (length > 6000 ? length - 6000 : 0));
        free(said);
        return false;
    }
    static const char *const names[] = {"count", "said",     "input",      "seed",
                                        "file",  "job.json", "rank0.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ls_text_put(path, sizeof path, "%s/%s", f.folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(f.folder);
    return true;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 60;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (!(seconds > 0) || argc > 3) {
        ls_log_error("usage: fuzz SECONDS [SEED]");
        return LS_ERR_USAGE;
    }
    int bad = 0;
    for (int i = 0; i < READERS; i++) {
        bad += !fuzz_reader(&readers[i], seed, seconds / READERS);
    }
    printf("fuzz: %d readers, %d not clean\n", READERS, bad);
    return bad == 0 ? 0 : LS_ERR_CHECK;
}
