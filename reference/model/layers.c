#include "layers.h"

void ls_layers_extents(const ls_network *network, int image_size, ls_layer_extent *extent)
{
    for (int i = 0; i < network->layer_count; i++) {
        const ls_layer *layer = &network->layer[i];
        ls_layer_extent input = i == 0 ? (ls_layer_extent){layer->channels, image_size, image_size}
                                       : extent[layer->input[0]];
        ls_layer_extent output = {layer->channels, input.height, input.width};
        switch (layer->kind) {
        case LS_LAYER_CONV:
        case LS_LAYER_MAX_POOL:
        case LS_LAYER_SHORTCUT_PAD: /* kernel 1, pad 0 */
            output.height = (input.height + 2 * layer->pad - layer->kernel) / layer->stride + 1;
            output.width = (input.width + 2 * layer->pad - layer->kernel) / layer->stride + 1;
            break;
        case LS_LAYER_AVG_POOL:
        case LS_LAYER_LINEAR:
            output.height = output.width = 1;
            break;
        case LS_LAYER_CROSS_ENTROPY:
            output = (ls_layer_extent){1, 1, 1};
            break;
        case LS_LAYER_INPUT:
        case LS_LAYER_BATCH_NORM:
        case LS_LAYER_RELU:
        case LS_LAYER_ADD:
            break;
        }
        extent[i] = output;
    }
}

void ls_layers_backward_order(const ls_network *network, int *order)
{
    int next = 0,
        first_loose = 0; /* first_loose: parameters without a layer, of the auxiliary head */
    for (int i = 0; i < network->layer_count; i++) {
        first_loose =
            network->layer[i].weight >= first_loose ? network->layer[i].weight + 1 : first_loose;
        first_loose =
            network->layer[i].bias >= first_loose ? network->layer[i].bias + 1 : first_loose;
    }
    for (int i = network->param_count - 1; i >= first_loose; i--) {
        order[next++] = i;
    }
    for (int i = network->layer_count - 1; i >= 0; i--) {
        const ls_layer *layer = &network->layer[i];
        bool bias_first = layer->kind == LS_LAYER_LINEAR;
        int first = bias_first ? layer->bias : layer->weight;
        int second = bias_first ? layer->weight : layer->bias;
        if (first >= 0) {
            order[next++] = first;
        }
        if (second >= 0) {
            order[next++] = second;
        }
    }
    LS_ASSERT(next == network->param_count);
}
