/* `lockstep layers`: where a step's time goes on a GPU, pass by pass, against what it must move and
 * compute. */
#ifndef LS_LAYERS_H
#define LS_LAYERS_H

int ls_layers_main(int count, char **argument);

#endif
