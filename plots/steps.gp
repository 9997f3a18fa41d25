# The steps of an observed job: a strip of each rank, loss, loss scale and time over the same axis.
table = ARG1; output_file = ARG2; format = ARG3; world = int(ARG4)
figure_name = "steps"; figure_title = ""
stats table using 1 name "step" nooutput
stats table index 0:(world-1) using 5 name "scale" nooutput
shown = world < 16 ? world : 16
scaled = scale_max > 1
panels = scaled ? 3 : 2
head = 62
strip = head + 22*shown + 26
figure_height = strip + 120*panels + 40
load "style.gp"
part(n) = real(n)/figure_height
array state_rgb[5] = [0xdde2e7, 0x88CCEE, 0x332288, 0xE69F00, 0xCC3311]
array word_of[5] = ["no digest", "equal", "in detail", "skipped", "different"]
array rank_rgb[4] = [0x0072B2, 0xE69F00, 0x009E73, 0xCC79A7]
colour(k) = rank_rgb[1 + k%4]
set multiplot
set xrange [step_min-0.5:step_max+1]
set lmargin at screen 0.12; set rmargin at screen 0.98
unset title
# the strip
set tmargin at screen 1 - part(head - 16); set bmargin at screen 1 - part(head + 22*shown)
set yrange [shown-0.5:-0.9]
set ytics 1; set format y "rank %.0f"; set format x ""; unset grid; set ytics font ",11"
set style fill solid 1 noborder
set key at screen 0.12, screen 1 - part(4) top left horizontal maxcols 7 samplen 0.6 width 1 font ",11"
plot for [k = 0:shown-1] for [s = 0:4] table index k using ($3 == s ? $1 : NaN):(k):($1-0.5):($1+$2-0.5):(k-0.36):(k+0.36) \
         with boxxyerror fillcolor rgb state_rgb[s+1] notitle, \
     for [s = 0:4] keyentry with boxes fillcolor rgb state_rgb[s+1] title word_of[s+1], \
     table index world using ($2 == 1 ? $1 : NaN):(-0.68) with points pointtype 11 pointsize 0.6 \
         linecolor rgb "#49525c" title "validation", \
     table index world using ($2 == 2 ? $1 : NaN):(-0.68) with points pointtype 5 pointsize 0.6 \
         linecolor rgb "#009E73" title "save"
unset key
set grid ytics linecolor rgb "#dde2e7" linetype 1 linewidth 0.6
set format y "%g"; set ytics auto; set autoscale y; set key default; unset key
place = "set tmargin at screen 1 - part(strip + 120*panel); set bmargin at screen 1 - part(strip + 120*panel + 92)"
panel = 0; eval place
set ylabel "loss"
if (world > 1) { set key inside top right horizontal maxrows 1 samplen 1.2 font ",11" }
plot for [k = 0:shown-1] table index k using 1:4 with lines linewidth 1.4 linecolor rgb colour(k) \
    title (world > 1 ? sprintf("rank %d", k) : "")
unset key
if (scaled) {
    panel = panel + 1; eval place
    set ylabel "loss scale"; set logscale y 2; set format y "2^{%L}"
    plot for [k = 0:shown-1] table index k using 1:5 with steps linewidth 1.4 linecolor rgb colour(k) notitle
    unset logscale y; set format y "%g"
}
panel = panel + 1; eval place
set format x "%g"; set xlabel "step"
set ylabel "ms"; set logscale y 10
plot for [k = 0:shown-1] table index k using 1:6 with points pointtype 7 pointsize 0.35 linecolor rgb colour(k) notitle
unset multiplot
