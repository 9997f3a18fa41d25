/* The oracle's own table of networks: torchvision's ResNet-18/34/50/101/152 (v1.5: the 3x3 of a
 * bottleneck carries the stride) and the CIFAR ResNets 6n+2 of He et al. (8, 20, 32, 44, 56, 110;
 * option A shortcuts). Written independently of reference/model/model.c, so that both would have to
 * contain the same wrong layer. */
#ifndef LS_ORACLE_NETTAB_H
#define LS_ORACLE_NETTAB_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef enum ls_nettab_kind {
    LS_NETTAB_INPUT,
    LS_NETTAB_CONV, /* weight [channels, in, kernel, kernel], no bias */
    LS_NETTAB_NORM, /* batch norm: weight [channels], bias [channels] */
    LS_NETTAB_RELU, /* branch: output > 0 */
    LS_NETTAB_POOL, /* max-pool; branch: index h*W+w in the input plane; first maximum in row order
                     */
    LS_NETTAB_ADD,  /* input + other */
    LS_NETTAB_SHORTCUT, /* every stride-th pixel from the first on (pad is 0), zero
                           channels appended at the end */
    LS_NETTAB_MEAN,     /* over the plane */
    LS_NETTAB_LINEAR,   /* weight [channels, in], bias [channels] */
} ls_nettab_kind;

typedef struct ls_nettab_node {
    ls_nettab_kind kind;
    int input, other;            /* nodes read; other: only ADD, else -1 */
    int channels, height, width; /* of the output */
    int kernel, stride, pad;
    int weight, bias; /* parameters; -1: none */
    int branch;       /* number in order of execution; -1: none */
    char name[48];    /* "layer1.0.conv1", "layer1.0.relu2", "maxpool" */
} ls_nettab_node;

typedef struct ls_nettab_param {
    char name[64];         /* torchvision's */
    int node;              /* the node that uses it */
    int64_t count, offset; /* elements, and offset in the whole gradient (order of registration) */
} ls_nettab_param;

enum { LS_NETTAB_NODES_MAX = 640, LS_NETTAB_PARAMS_MAX = 480, LS_NETTAB_BRANCHES_MAX = 160 };

typedef struct ls_nettab {
    char arch[32];
    int classes;
    int node_count, param_count, branch_count;
    int64_t elements; /* of all parameters */
    ls_nettab_node
        node[LS_NETTAB_NODES_MAX]; /* order of execution; 0 is the input, the last gives logits */
    ls_nettab_param param[LS_NETTAB_PARAMS_MAX];
    int branch_node[LS_NETTAB_BRANCHES_MAX];
} ls_nettab;

/* Whether there is such a network. */
bool ls_nettab_knows(const char *arch);
/* All of them, for a message. */
#define LS_NETTAB_NAMES "resnet18, 34, 50, 101, 152 or resnet8, 20, 32, 44, 56, 110"
/* LS_ERR_USAGE with a line for an unknown network or an image too small to convolve. */
ls_status ls_nettab_build(const char *arch, int classes, int height, int width, ls_nettab *out);
/* -1 when absent. */
int ls_nettab_find_param(const ls_nettab *net, const char *name);
/* Multiply-adds of one image's forward pass, convolutions and linear. */
int64_t ls_nettab_macs(const ls_nettab *net);

#endif
