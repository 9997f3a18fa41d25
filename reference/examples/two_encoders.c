/* Two encoders, one optimizer with two parameter groups: the lines that a training script for Apex
 * has, in its order. Without amp and DDP these calls would remain: backward, step, zero_grad.
 *
 *     query, key = ResNet(), ResNet()
 *     optimizer = SGD([{"params": query.parameters()},
 *                      {"params": key.parameters(), "lr": lr / 4, "weight_decay": 0}], lr=lr)
 *     [query, key], optimizer = amp.initialize([query, key], optimizer, opt_level="O1")
 *     query, key = DistributedDataParallel(query), DistributedDataParallel(key)
 *     for images, target in loader:
 *         loss = cross_entropy(query(images), target) + cross_entropy(key(images), target)
 *         with amp.scale_loss(loss, optimizer, delay_unscale=more_to_accumulate) as scaled:
 *             scaled.backward()
 *         optimizer.step()
 *         optimizer.zero_grad()
 *
 * There is one loss, so one loss scale: an overflow in either encoder skips the step of both. */
#include "example.h"

#include "reference/state/optim.h"

static ls_status train_step(ls_example *example, ls_example_model *query, ls_example_model *key,
                            int optimizer)
{
    int accumulate = example->options.accumulate;
    float loss = 0;
    bool skipped = false;
    for (int micro = 0; micro < accumulate; micro++) {
        bool delay_unscale = micro < accumulate - 1;
        ls_step_state *scaled;
        LS_TRY(ls_example_next_batch(example));
        LS_TRY(ls_amp_begin(example->amp, 0, &optimizer, 1, delay_unscale, &scaled));
        LS_TRY(ls_example_backward(query, scaled, &loss));
        LS_TRY(ls_example_backward(key, scaled, &loss));
        LS_TRY(ls_amp_end(example->amp));
    }
    LS_TRY(ls_amp_step(example->amp, optimizer, &skipped));
    LS_TRY(ls_amp_zero_grad(example->amp, optimizer));
    return ls_example_end_step(example, &loss, &skipped);
}

ls_status ls_two_encoders_train(ls_example *example)
{
    const ls_options *options = &example->options;
    ls_optimizer_config rule = ls_optim_config(options);
    ls_example_model *query, *key;
    int optimizer;
    LS_TRY(ls_example_open_model(example, "query", options->arch, options->accumulate, &query));
    LS_TRY(ls_example_open_model(example, "key", "resnet8", options->accumulate, &key));
    LS_TRY(ls_example_open_amp(example, 1));
    LS_TRY(ls_amp_add_optimizer(example->amp, &optimizer));
    LS_TRY(ls_example_add_group(query, optimizer, &rule, 1.0));
    rule.weight_decay = 0;
    LS_TRY(ls_example_add_group(key, optimizer, &rule, 0.25));
    while (ls_example_goes_on(example)) {
        LS_TRY(ls_example_begin_step(example));
        LS_TRY(train_step(example, query, key, optimizer));
    }
    return LS_OK;
}
