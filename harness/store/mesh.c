#include "mesh.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "gate.h"

enum { PENDING = 64 /* connections without a proof, besides one for each rank */ };

typedef struct mesh {
    ls_store *store;
    const char *name;
    int rank, world;
    unsigned char key[LS_SHA256_BYTES];
    int64_t begun_ns, deadline_ns;
    ls_gate *gate;
    int *fd;
} mesh;

static void key_of(const mesh *m, int rank, char *text, size_t text_bytes)
{
    ls_text_put(text, text_bytes, "%s/address/%d", m->name, rank);
}

/* Publishes "ADDRESS PORT". */
static ls_status publish(const mesh *m, const struct sockaddr *own, socklen_t own_bytes)
{
    char host[128], key[LS_STORE_KEY_BYTES_MAX + 1];
    int failed = getnameinfo(own, own_bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    if (failed != 0) {
        return ls_log_fail(LS_ERR_INFRA, "%s: own address: %s", m->name, gai_strerror(failed));
    }
    LS_TEXT(text, 160, "%s %d", host, ls_gate_port(m->gate));
    key_of(m, m->rank, key, sizeof key);
    return ls_store_set(m->store, key, text, strlen(text));
}

static ls_status call(mesh *m, int rank)
{
    char key[LS_STORE_KEY_BYTES_MAX + 1], why[256];
    void *value = NULL;
    size_t bytes = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    double rest_s = (double)(m->deadline_ns - ls_clock_ns()) * 1e-9;
    key_of(m, rank, key, sizeof key);
    LS_TRY(ls_store_get(m->store, key, rest_s > 0 ? rest_s : 0, &value, &bytes));
    char *address = value, *port = strchr(address, ' ');
    if (port != NULL) {
        *port++ = '\0';
    }
    if (port == NULL || getaddrinfo(address, port, &hints, &found) != 0) {
        ls_log_error("%s: rank %d has published '%s', which is no address", m->name, rank, address);
        free(value);
        return LS_ERR_RENDEZVOUS;
    }
    ls_gate_claim claim = {.rank = m->rank, .world = m->world};
    ls_gate_result result = ls_gate_enter_again(found->ai_addr, found->ai_addrlen, m->key, &claim,
                                                m->deadline_ns, &m->fd[rank], why, sizeof why);
    freeaddrinfo(found);
    ls_status status = LS_OK;
    if (result != LS_GATE_IN) {
        status = ls_log_fail(LS_ERR_RENDEZVOUS,
                             "%s: rank %d of %d did not reach rank %d at %s port %s in %.3g s: %s",
                             m->name, m->rank, m->world, rank, address, port,
                             ls_clock_ms_between(m->begun_ns, ls_clock_ns()) * 1e-3, why);
    }
    free(value);
    return status;
}

static ls_status be_called(mesh *m)
{
    int missing = m->world - 1 - m->rank;
    while (missing > 0) {
        ls_gate_guest guest;
        int64_t until_ns = ls_gate_deadline_ns(m->gate);
        (void)ls_clock_poll(ls_gate_fd(m->gate), POLLIN,
                            until_ns < m->deadline_ns ? until_ns : m->deadline_ns);
        while (ls_gate_next(m->gate, &guest)) {
            int rank = guest.claim.rank;
            if (guest.claim.world != m->world || rank <= m->rank || rank >= m->world) {
                ls_log_warn("%s: refused %s: rank %d of %d", m->name, guest.who, rank,
                            guest.claim.world);
                close(guest.fd);
                continue;
            }
            if (m->fd[rank] >= 0) { /* it did not see its welcome and tried again */
                close(m->fd[rank]);
            } else {
                missing--;
            }
            m->fd[rank] = guest.fd;
        }
        if (missing > 0 && ls_clock_ns() >= m->deadline_ns) {
            int rank = m->rank + 1;
            while (m->fd[rank] >= 0) {
                rank++;
            }
            return ls_log_fail(LS_ERR_RENDEZVOUS,
                               "%s: rank %d did not connect to rank %d of %d in %.3g s, nor did %d "
                               "others",
                               m->name, rank, m->rank, m->world,
                               ls_clock_ms_between(m->begun_ns, ls_clock_ns()) * 1e-3, missing - 1);
        }
    }
    return LS_OK;
}

ls_status ls_mesh_connect(ls_store *store, const char *name, int rank, int world,
                          const struct sockaddr *own, socklen_t own_bytes, int64_t deadline_ns,
                          int *fd)
{
    mesh m = {.store = store,
              .name = name,
              .rank = rank,
              .world = world,
              .begun_ns = ls_clock_ns(),
              .deadline_ns = deadline_ns,
              .fd = fd};
    for (int i = 0; i < world; i++) {
        fd[i] = -1;
    }
    ls_store_key(store, name, m.key);
    if (ls_gate_open(name, own, own_bytes, m.key, world + PENDING, &m.gate) != LS_OK) {
        return ls_log_fail(LS_ERR_INFRA, "%s: rank %d cannot listen: %s", name, rank,
                           strerror(errno));
    }
    ls_status status = publish(&m, own, own_bytes);
    for (int other = 0; other < rank; other++) {
        LS_THEN(status, call(&m, other));
    }
    LS_THEN(status, be_called(&m));
    ls_gate_close(m.gate);
    for (int i = 0; i < world && status != LS_OK; i++) {
        if (fd[i] >= 0) {
            close(fd[i]);
            fd[i] = -1;
        }
    }
    return status;
}
