# A plan: images/s of all GPUs with the ideal line, and the efficiency of each way.
table = ARG1; output_file = ARG2; format = ARG3; figure_title = ARG4; blocks = ARG5
figure_name = "plan"
figure_height = 440
load "style.gp"
unset title
top_margin = 1 - (34.0 + 19.0*title_lines)/figure_height
set multiplot layout 1,2 title figure_title font title_font offset 0,-0.2 noenhanced margins 0.10,0.96,0.17,top_margin spacing 0.13,0.1
array way_rgb[3] = [0x0072B2, 0xE69F00, 0x009E73]
set logscale x 2
set xtics rotate by -45 font ",11"
set format x "%.0f"
set xlabel "GPUs" offset 0,-0.6
set logscale y 10
set format y "%.0s%c"
set ylabel "images/s, all GPUs" offset -0.5,0
set key top left
plot table using 1:3 with lines dashtype 2 linewidth 1.2 linecolor rgb "#7a8590" title "ideal", \
     table using 1:2 with linespoints pointtype 7 pointsize 0.7 linewidth 1.8 linecolor rgb "#1c2024" title "planned"
unset logscale y
set format y "%.0f %%"
set yrange [0:105]
set ylabel "of one GPU's speed" offset 0.5,0
set key bottom left
plot for [w = 1:3] table using 1:(column(3+w)*100) with lines linewidth 2.6-0.5*w linecolor rgb way_rgb[w] \
         title word("ring tree hierarchical", w)
unset multiplot
