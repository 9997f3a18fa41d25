# Timeline of one step: two lanes per rank on one clock.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "timeline"
stats ARG1 using 1 name "rank" nooutput
stats ARG1 using 4 name "last" nooutput
ranks = int(rank_max) + 1
figure_height = 180 + (ranks < 5 ? 44 : ranks < 17 ? 32 : 520.0/ranks)*ranks
load "style.gp"
set yrange [ranks-0.4:-0.6]
set xrange [0:last_max*1.005]
set ytics 1
set format y "rank %.0f"
set xlabel "ms since the step began"
set grid xtics noytics linecolor rgb "#dde2e7" linetype 1 linewidth 0.6
set bmargin 7.5
eval key_below
is(name, part) = strstrt(name, part) == 1
y(rank, lane) = rank + (lane > 0 ? 0.2 : -0.18)
half(lane) = lane > 0 ? 0.14 : 0.2
set style fill solid 1 border rgb "#ffffff"
plot for [i = 1:4] table using ($2 == 0 && is(strcol(5), word("data forward backward optimizer", i)) ? $3 : NaN) \
         :(y($1, $2)):3:4:(y($1, $2)-half($2)):(y($1, $2)+half($2)) with boxxyerror \
         fillcolor rgb part_rgb[word("1 2 3 5", i)+0] title word("data forward backward optimizer", i), \
     table using ($2 == 0 && !is(strcol(5), "data") && !is(strcol(5), "forward") && !is(strcol(5), "backward") \
         && !is(strcol(5), "optimizer") ? $3 : NaN):(y($1, $2)):3:4:(y($1, $2)-half($2)):(y($1, $2)+half($2)) \
         with boxxyerror fillcolor rgb part_rgb[8] title "other compute", \
     table using ($2 == 1 ? $3 : NaN):(y($1, $2)):3:4:(y($1, $2)-half($2)):(y($1, $2)+half($2)) \
         with boxxyerror fillcolor rgb part_rgb[4] title "communication"
