# Throughput and exposed communication by bucket size, side by side.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "bucket"
figure_height = 440
load "style.gp"
unset title
top_margin = 1 - (34.0 + 19.0*title_lines)/figure_height
set multiplot layout 1,2 title figure_title font title_font offset 0,-0.2 noenhanced margins 0.10,0.98,0.25,top_margin spacing 0.12,0.1
unset key
stats table using (valid(9) && $9 > $7 ? $9 : $7) name "rate" nooutput
stats table using 13 name "wait" nooutput
wait_top = exists("wait_max") && wait_max > 0 ? wait_max : 1
wait_low = 0
stats table using 24 name "no_comm" nooutput
compared = exists("no_comm_records") && no_comm_records > 0
if (compared) {
    wait_top = no_comm_max > wait_top ? no_comm_max : wait_top
    stats table using 23 name "least" nooutput
    wait_low = least_min < 0 ? least_min*1.15 : 0
}
set xrange [-0.6:rate_records-0.4]
set boxwidth 0.62
set xlabel "bucket size as reduced"
set ylabel "images/s, all ranks" offset 1,0
set yrange [0:rate_max*1.15]
plot table using 1:7:(0.62):(level_colour($2)):xticlabels(19) with boxes linecolor rgb variable, \
     table using 1:8:(0):($9-$8) with vectors heads size graph 0.008,90 linewidth 1.4 linecolor rgb "#1c2024", \
     table using 1:(valid(9) ? $9 : $7):(sprintf("%.4g", $7)) with labels offset 0,0.8 noenhanced
set ylabel "exposed, ms per step" offset 0.5,0
set yrange [wait_low:wait_top*1.15]
if (compared) { eval key_below }
plot table using 1:13:xticlabels(19) with boxes linecolor rgb part_rgb[4] title (compared ? "waited for" : ""), \
     table using 1:(compared ? $22 : NaN):23:24 with yerrorbars pointtype 12 pointsize 1.2 linewidth 1.6 \
         linecolor rgb "#1c2024" title (compared ? "against no_comm" : ""), \
     table using 1:13:(sprintf("%.3g", $13)) with labels offset 0,0.8 noenhanced notitle
unset multiplot
