# Where a step's time goes: one stacked bar per job.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "phases"
stats ARG1 using 1 name "bars" nooutput
figure_height = 220 + 52*bars_records
load "style.gp"
part_title(i) = i == 4 ? "exposed comm." : word("data forward backward exposed optimizer rest", i)
set yrange [bars_records-0.4:-0.6]
set xrange [0:*]
set xlabel "ms per step"
set grid xtics noytics linecolor rgb "#dde2e7" linetype 1 linewidth 0.6
set bmargin 7.5
eval key_below
sum_to(i) = (i < 1 ? 0 : column(2)) + (i < 2 ? 0 : column(3)) + (i < 3 ? 0 : column(4)) \
    + (i < 4 ? 0 : column(5)) + (i < 5 ? 0 : column(6)) + (i < 6 ? 0 : column(7))
# All communication ends where its exposed part ends; the rest overlapped with backward.
comm_from(i) = sum_to(4) > column(8) ? sum_to(4) - column(8) : 0
plot for [i = 1:6] table using (sum_to(i-1)):1:(sum_to(i-1)):(sum_to(i)):($1-0.32):($1+0.2):yticlabels(10) \
         with boxxyerror fillcolor rgb part_rgb[i] title part_title(i), \
     table using (comm_from(0)):1:(comm_from(0)):(sum_to(4)):($1+0.24):($1+0.34) with boxxyerror \
         fillcolor rgb part_rgb[7] title "all comm."
