/* Two losses, two optimizers, and a model that both losses reach: the lines that a training script
 * for Apex has, in its order.
 *
 *     shared, own = ResNet(), ResNet()
 *     first, second = SGD(shared.parameters(), lr=lr), SGD(own.parameters(), lr=lr / 2)
 *     [shared, own], [first, second] = amp.initialize([shared, own], [first, second],
 *                                                     opt_level="O1", num_losses=2)
 *     shared, own = DistributedDataParallel(shared), DistributedDataParallel(own)
 *     for (images0, target0), (images1, target1) in loader:
 *         loss0 = cross_entropy(shared(images0), target0) / 2
 *         with amp.scale_loss(loss0, first, loss_id=0) as scaled:
 *             scaled.backward()
 *         loss1 = cross_entropy(shared(images1), target1) / 2 + cross_entropy(own(images1),
 * target1) with amp.scale_loss(loss1, [first, second], loss_id=1) as scaled: scaled.backward()
 *         first.step(), second.step()
 *         first.zero_grad(), second.zero_grad()
 *
 * Each loss has a scale of its own. A block lists every optimizer whose parameters its backward
 * reaches: an overflow of loss 0 skips the first optimizer only, one of loss 1 skips both, and the
 * gradients that loss 0 gave the shared model go with it. */
#include "example.h"

#include "reference/state/optim.h"

enum { FIRST, SECOND };

static ls_status train_step(ls_example *example, ls_example_model *shared, ls_example_model *own)
{
    static const int first[] = {FIRST}, both[] = {FIRST, SECOND};
    ls_amp *amp = example->amp;
    float loss[2] = {0, 0};
    bool skipped[2];
    ls_step_state *scaled;

    LS_TRY(ls_example_next_batch(example));
    LS_TRY(ls_amp_begin(amp, 0, first, 1, false, &scaled));
    LS_TRY(ls_example_backward(shared, scaled, &loss[0]));
    LS_TRY(ls_amp_end(amp));

    LS_TRY(ls_example_next_batch(example));
    LS_TRY(ls_amp_begin(amp, 1, both, 2, false, &scaled));
    LS_TRY(ls_example_backward(shared, scaled, &loss[1]));
    LS_TRY(ls_example_backward(own, scaled, &loss[1]));
    LS_TRY(ls_amp_end(amp));

    for (int optimizer = FIRST; optimizer <= SECOND; optimizer++) {
        LS_TRY(ls_amp_step(amp, optimizer, &skipped[optimizer]));
        LS_TRY(ls_amp_zero_grad(amp, optimizer));
    }
    return ls_example_end_step(example, loss, skipped);
}

ls_status ls_two_losses_train(ls_example *example)
{
    const ls_options *options = &example->options;
    ls_optimizer_config rule = ls_optim_config(options);
    ls_example_model *shared, *own;
    int first, second;
    LS_TRY(ls_example_open_model(example, "shared", options->arch, 2, &shared));
    LS_TRY(ls_example_open_model(example, "own", "resnet8", 1, &own));
    LS_TRY(ls_example_open_amp(example, 2));
    LS_TRY(ls_amp_add_optimizer(example->amp, &first));
    LS_TRY(ls_amp_add_optimizer(example->amp, &second));
    LS_ASSERT(first == FIRST && second == SECOND);
    LS_TRY(ls_example_add_group(shared, first, &rule, 1.0));
    LS_TRY(ls_example_add_group(own, second, &rule, 0.5));
    while (ls_example_goes_on(example)) {
        LS_TRY(ls_example_begin_step(example));
        LS_TRY(train_step(example, shared, own));
    }
    return LS_OK;
}
