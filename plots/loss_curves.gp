# Loss of all levels over each other, with the band of the O0 runs where there are several.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "loss"
load "style.gp"
set xlabel "step"
set ylabel "training loss"
set bmargin 6.5
eval key_below
dash(label) = strstrt(label, "bf16") > 0 ? 2 : 1
stats table using 3 name "band" nooutput
banded = exists("band_records") && band_records > 0
plot for [i = 1:(banded ? words(blocks) : 0)] table index i-1 using 1:3:4 with filledcurves \
         fillcolor rgb "#d5dae0" title (i == 1 ? "band of the O0 runs" : ""), \
     for [i = 1:words(blocks)] table index i-1 using 1:2 with lines linewidth 1.8 \
         dashtype dash(word(blocks, i)) \
         linecolor rgb label_colour(word(blocks, i)) title word(blocks, i)
